"""A recipe that asks a model for what it does not know is refused with the key and what to write."""

import pytest
import tiny_recipe
from refused import refused

from reelworks.core.errors import UserError
from reelworks.models import components, config, registry
from reelworks.models.config import ModelConfig, TextEncoderConfig
from reelworks.models.family import ComponentShapes
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.training.recipe import recipe_file, validation
from reelworks.training.recipe.recipe import Recipe


def recipe(model: ModelConfig, objective: str = "rectified-flow", masks: dict[str, float] | None = None) -> Recipe:
    plain = {"version": 1, "output": "run", "dataset": [{"path": "clips"}], "train": {"max_steps": 1}}
    changes = {"model": model, "objective": ObjectiveConfig.model_construct(name=objective, mask_ratios=masks or {})}
    return Recipe.model_validate(plain).model_copy(update=changes)


def test_an_objective_that_the_weights_do_not_know_is_refused():
    """Published weights go with their objective; fresh ones learn any."""
    with refused("other-objective", "objective.name", says='write "epsilon"'):
        validation.require_objective(recipe(ModelConfig(name="sdxl", weights="w"), "rectified-flow", {}))
    validation.require_objective(recipe(ModelConfig(name="sdxl", weights="w"), "v-prediction", {}))
    validation.require_objective(recipe(ModelConfig(name="sdxl"), "rectified-flow", {}))
    validation.require_objective(recipe(ModelConfig(name="stdit2-xl", weights="w"), "iddpm", {}))


@pytest.mark.parametrize(
    ("objective", "steps"), [("iddpm", 1), ("iddpm", 1001), ("epsilon", 1001), ("v-prediction", 1001)]
)
def test_steps_of_previews_that_their_sampler_has_not_are_refused(objective, steps):
    values = tiny_recipe.least(objective={"name": objective}, samples={"num_inference_steps": steps})
    with refused("steps-out-of-range", "samples.num_inference_steps", says="is not in .*as is usual"):
        recipe_file.parse(values)
    recipe_file.parse(values | {"samples": {"num_inference_steps": 1000}})
    recipe_file.parse(values | {"objective": {"name": "rectified-flow"}})


def test_masks_of_given_frames_need_a_network_that_is_told():
    """Ratios are refused where they would change nothing but the loss."""
    for name in ("wan-2.1-1.3b", "flux-dev"):
        with refused("conditions-not-taken", "objective.mask_ratios"):
            validation.require_objective(recipe(ModelConfig(name=name), "rectified-flow", {"image_head": 0.3}))
        validation.require_objective(recipe(ModelConfig(name=name), "rectified-flow", {"identity": 1.0}))
    validation.require_objective(recipe(ModelConfig(name="wan-2.2-5b"), "rectified-flow", {"image_head": 0.3}))
    with refused("conditions-not-taken", "objective.mask_ratios", says="leave out inpaint, or choose"):
        validation.require_objective(
            recipe(
                ModelConfig(name="wan-2.2-5b"), "rectified-flow", {"image_head": 0.3, "inpaint": 0.1, "outpaint": 0.0}
            )
        )
    both = {"image_head": 0.3, "inpaint": 0.1, "outpaint": 0.1}
    validation.require_objective(recipe(ModelConfig(name="wan-2.1-vace-1.3b"), "rectified-flow", both))


def test_every_preset_has_its_parts_and_they_fit():
    """What a full-size preset was published with exists and has the widths of its defaults."""
    for name, preset in registry.PRESETS.items():
        if name.endswith("-tiny") or name.startswith("stdit"):
            continue
        parts = registry.PRESETS[name].parts
        text = TextEncoderConfig(name=parts.text, weights="-")
        autoencoder = config.AutoencoderConfig(name=parts.autoencoder, weights="-")
        neighbours = ComponentShapes(components.latent_channels(autoencoder), text.dim, text.pooled_dim)
        assert preset.config.fit(neighbours) == preset.config, name


@pytest.mark.parametrize(
    ("model", "given", "match"),
    [
        ("wan-2.1-14b", [{"control"}], r"dataset\.control: wan-2\.1-14b does not take a control\n.*flux-control"),
        ("flux-dev", [{"source"}], "flux-kontext.*flux2-dev.*qwen-image-edit"),
        ("flux-control", [{}], r"dataset\.control: flux-control needs a control"),
        ("qwen-image-edit", [{"source"}, {}], "1 of 2 has a source"),
        ("flux-control", [{"control"}, {}], "1 of 2 has a control, and a batch cannot mix"),
        ("flux-kontext", [{"source", "source-2"}], "dataset.source: flux-kontext takes 1 source of a clip"),
    ],
)
def test_companions_are_refused_where_they_are_not_seen_and_asked_for_where_they_are_needed(model, given, match):
    """By name, with the models that take them; a batch cannot hold clips with and without."""
    with pytest.raises(UserError, match=match):
        validation.require_companions(ModelConfig(name=model), given, "dataset.")


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("flux-control", [{"control", "loss_mask"}, {"control"}]),
        ("flux-kontext", [{}]),
        ("flux-kontext", [{"source"}]),
        ("flux-kontext", [{"source"}, {}]),
        ("flux2-dev", [{"source", "source-2", "source-3"}, {"source"}, {}]),
        ("stdit3-xl", [{"loss_mask"}, {}]),
    ],
)
def test_companions_that_a_model_is_shown_pass(model, given):
    """What it needs and takes, and a loss mask anywhere, is no error."""
    assert validation.require_companions(ModelConfig(name=model), given, "dataset.") is None


def test_an_image_encoder_is_named_where_there_is_one_and_nowhere_else():
    """Wan 2.1 looks at the first frame by CLIP, Wan 2.2 does not."""
    with refused("image-encoder-mismatch", "model.image_encoder", says=r"needs an image encoder \(clip\)"):
        validation.require_image_encoder(recipe(ModelConfig(name="wan-2.1-i2v-14b")))
    with refused("image-encoder-mismatch", "model.image_encoder"):
        validation.require_image_encoder(recipe(ModelConfig(name="wan-2.2-i2v-14b", image_encoder="x")))
    validation.require_image_encoder(recipe(ModelConfig(name="wan-2.2-i2v-14b")))


def test_a_first_frame_is_asked_for_and_refused():
    """Clips of i2v models begin with one, pictures do not, and other models are not told."""
    for name, reference, frames, match in (
        ("wan-2.2-i2v-14b", None, 5, "from a first frame"),
        ("wan-2.2-i2v-14b", "a.png", 1, "does not support conditioning"),
        ("wan-2.1-14b", "a.png", 5, "does not support conditioning"),
        ("stdit3-tiny", "a.png", 1, "does not support conditioning"),  # it would be all of the clip
    ):
        with pytest.raises(UserError, match=match):
            validation.require_given_frames(ModelConfig(name=name), reference, None, frames)
    validation.require_given_frames(ModelConfig(name="wan-2.2-i2v-14b"), "a.png", None, 5)
    validation.require_given_frames(ModelConfig(name="wan-2.2-5b"), "a.png", None, 5)


def test_a_last_frame_is_asked_for_and_refused():
    """Clips of models of first and last frames end with one; an i2v model is given none."""
    both = ModelConfig(name="wan-2.1-flf2v-14b")
    with refused("given-frame-missing", "samples.last_frame", says="from a last frame"):
        validation.require_given_frames(both, "a.png", None, 5)
    with refused("given-frame-missing", "samples.last_frame", says="does not support"):
        validation.require_given_frames(ModelConfig(name="wan-2.2-i2v-14b"), "a.png", "b.png", 5)
    validation.require_given_frames(both, "a.png", "b.png", 5)
