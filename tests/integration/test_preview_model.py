"""A LoRA is trained on one model and shown on another of the same family."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import children
import numpy as np
import pytest
import tiny_recipe
import torch
from PIL import Image
from refused import refused
from test_lora import lora, on_file, pictures

from reelworks.core.shape import Shape
from reelworks.data.catalog.config import DatasetConfig
from reelworks.inference.generate import defaults, diffusers_pipeline
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import registry
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.config import ModelConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.assembly import preview_model as previews
from reelworks.training.loop import start
from reelworks.training.recipe import preview_model, recipe_file, release_notes

__all__ = ["lora", "pictures"]
CPU = torch.device("cpu")


@pytest.mark.slow
def test_previews_and_generate_add_the_lora_to_the_other_model(lora, tmp_path):
    """Both draw what the exported file draws on the other weights; training stands on its own ones as before."""
    values, other = (on_file(lora, tmp_path, number) for number in (1, 2))
    values["train"] |= {"max_steps": 3}
    shown_on = other["model"]["weights"]
    sizes = {"num_frames": 1, "height": 32, "width": 32, "num_inference_steps": 2, "guidance_scale": 3.0}
    values["samples"] = {"prompts": ["a kite"], "weights": shown_on} | sizes
    assert children.train(values) == [0], children.output(values)
    run = tmp_path / "run"
    preview = np.asarray(Image.open(next((run / "samples").glob("step-000000003/*.png"))))
    options = GenerateOptions(Shape(1, 32, 32), 24.0, 2, 3.0, recipe_file.load(run / "recipe.toml").seed)

    recipe = recipe_file.load(run / "recipe.toml")
    exported = next((run / "exports").glob("*step-000000003*diffusers*"))
    by_hand = recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update={"weights": shown_on}),
            "lora": recipe.lora.model_copy(update={"weights": str(exported)}),
        }
    )
    boundary, encoder = DtypeBoundary(build.denoiser(by_hand, CPU)), build.encoder(by_hand, CPU)
    boundary.denoiser.module.eval()
    wanted = diffusers_pipeline.generate(by_hand, boundary, encoder, ["a kite"], options).clips[0][0]
    assert np.array_equal(preview, wanted)
    assert np.array_equal(LoadedModel.load(run, shown=True).generate(["a kite"], options).clips[0][0], wanted)
    on_its_own = LoadedModel.load(run).generate(["a kite"], options).clips[0][0]
    assert not np.array_equal(on_its_own, wanted)


def flux(**values):
    return recipe_file.parse(
        tiny_recipe.least(
            bucket=[{"resolution": "512px", "num_frames": 1}],
            model={"name": "flux-dev", "weights": "black-forest-labs/FLUX.1-dev"},
            autoencoder={"name": "flux", "weights": "black-forest-labs/FLUX.1-dev"},
            text_encoder={"name": "flux", "weights": "black-forest-labs/FLUX.1-dev"},
            lora={"rank": 2},
            objective={"timestep_shift": 3.0},
        )
        | values
    )


def test_the_other_model_is_sampled_in_its_own_way():
    """Trained on FLUX.1-dev and shown on schnell: its weights, steps, guidance and shift; keys of the recipe win."""
    shown = flux(samples={"prompts": ["x"], "model": "flux-schnell"})
    recipe = preview_model.recipe_of(shown)
    assert recipe.model.weights == "black-forest-labs/FLUX.1-schnell"
    assert recipe.objective.timestep_shift == 1.0
    assert defaults.sampled(shown) == registry.PRESETS["flux-schnell"].sampling
    assert defaults.sampled(preview_model.without(shown)) == registry.PRESETS["flux-dev"].sampling
    own = flux(samples={"prompts": ["x"], "model": "flux-schnell", "weights": "mine", "num_inference_steps": 6})
    assert preview_model.recipe_of(own).model.weights == "mine"
    assert defaults.sampled(own).num_inference_steps == 6
    control = flux(samples={"prompts": ["x"], "model": "flux-control", "weights": "mine"})  # which has none published
    assert preview_model.recipe_of(control).model.weights == "mine"
    plain = flux()
    assert preview_model.recipe_of(plain) is plain


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"samples": {"model": "wan-2.1-1.3b"}}, "another family"),
        ({"samples": {"model": "flux-none"}}, "no such model"),
        ({"samples": {"model": "flux-control"}}, "no published weights"),
        ({"samples": {"model": "flux-schnell"}, "lora": None}, "all weights are trained"),
    ],
)
def test_a_model_that_cannot_show_the_lora_is_refused(values, says):
    with refused("preview-model-invalid", "samples.model", says=says):
        flux(**values)


def test_other_layers_are_refused_before_weights_are_read(lora, monkeypatch):
    """A smaller model of the family; one with the same layers is taken."""
    tiny = registry.PRESETS["wan-tiny"]
    family = registry.family_of("wan-tiny")
    for name, layers in (("wan-small", 1), ("wan-alike", tiny.config.num_layers)):
        preset = replace(tiny, config=tiny.config.model_copy(update={"num_layers": layers}))
        monkeypatch.setitem(registry.PRESETS, name, preset)
        monkeypatch.setitem(family.presets, name, preset)
    values = lora()
    previews.require_layers(recipe_file.parse(values | {"samples": {"model": "wan-alike"}}))
    with refused("preview-model-of-other-layers", "samples.model"):
        previews.require_layers(recipe_file.parse(values | {"samples": {"model": "wan-small"}}))


@pytest.mark.parametrize("kept", [{}, {"shards": True}, {"device": CPU}])
def test_the_trained_network_is_on_the_gpu_again_whatever_ended_its_previews(monkeypatch, kept):
    """One that is sharded, or on the CPU anyway, is not moved."""
    moved, network = [], torch.nn.BatchNorm1d(2)
    monkeypatch.setattr(previews, "_move", lambda tensors, device: moved.append((len(tensors), device.type)))
    world = SimpleNamespace(**{"device": torch.device("cuda"), "shards": False, **kept})
    with suppress(KeyboardInterrupt), previews._parked(network, world):
        assert moved == ([] if kept else [(5, "cpu")])
        raise KeyboardInterrupt
    assert moved == ([] if kept else [(5, "cpu"), (5, "cuda")])


def test_what_a_licence_restricts_is_told():
    """Of FLUX.1-dev and of its relatives, by name; FLUX.1-schnell is free."""
    assert "flux-dev: the FLUX Non-Commercial License" in (release_notes.licence_note(flux()) or "")
    schnell = {"name": "flux-schnell", "weights": "black-forest-labs/FLUX.1-schnell"}
    assert release_notes.licence_note(flux(model=schnell)) is None


def test_a_warning_names_ways_that_the_model_has():
    """The model it was distilled from, if that is known; guided targets, unless it is trained with sound or preferences."""

    def warning(name, **changes):
        model = ModelConfig(name=name, weights="w")
        return release_notes.distilled_warning(flux().model_copy(update={"model": model, **changes})) or ""

    assert 'train on flux-dev and set samples.model = "flux-schnell"' in warning("flux-schnell")
    assert 'train on ltx-2.5 and set samples.model = "ltx-2.5-distilled"' in warning("ltx-2.5-distilled")
    assert 'train on flux2-klein-base-4b and set samples.model = "flux2-klein-4b"' in warning("flux2-klein-4b")
    h3, with_sound = warning("minimax-h3"), warning("minimax-h3-sound")
    assert "Set lora.training_adapter to an adapter for this model, or set objective.target_guidance_scale" in h3
    assert "samples.model" not in h3 + with_sound
    assert "target_guidance_scale" not in with_sound
    assert "Set lora.training_adapter to an adapter for this model (docs/" in with_sound
    pairs = [DatasetConfig(path="better", rejected="worse")]
    assert "target_guidance_scale" not in warning("minimax-h3", dataset=pairs)
    assert "and leave lora.dora out" in warning("minimax-h3", lora=LoraConfig(dora=True))


def test_a_distilled_model_is_warned_of_until_something_prevents_the_loss(caplog, monkeypatch):
    """FLUX.1-schnell with a LoRA alone; not with an adapter, nor where all weights are trained, nor on another model."""
    schnell = {"name": "flux-schnell", "weights": "black-forest-labs/FLUX.1-schnell"}
    monkeypatch.setattr(start.build, "require_sources", lambda recipe, resumed: {})
    start.require_weights(flux(model=schnell), resumed=False)
    assert any(r.levelname == "WARNING" and "lora.training_adapter" in r.getMessage() for r in caplog.records)
    adapted = flux(model=schnell, lora={"rank": 2, "training_adapter": "adapter.safetensors"})
    for recipe in (adapted, flux(model=schnell, lora=None), flux()):
        assert release_notes.distilled_warning(recipe) is None
