"""A LoRA of the text encoders beside the network's: trained, resumed, averaged, written, read and drawn with as one."""

from __future__ import annotations

import shutil

import children
import diffusers
import killing
import numpy as np
import pytest
import tiny_families
import tiny_recipe
import torch
from PIL import Image
from refused import refused
from test_kill_and_resume import losses
from test_lora import tensors

from reelworks.annexes.lora import apply
from reelworks.annexes.lora.request import ApplyLorasRequest
from reelworks.core.shape import Shape
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import registry
from reelworks.models.adapters import inject, text_encoders
from reelworks.models.config import TextEncoderConfig
from reelworks.models.text import encoders, trained_texts
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

PROMPT = "two cats sit on a wall in the sun"
FORMATS = ["diffusers", "comfyui", "kohya"]
NAMES = ["sdxl-tiny", pytest.param("sd1.5-tiny", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six pictures of one shape with captions."""
    folder, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i, words in enumerate(tiny_families.LINES * 2):
        Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        (folder / f"{i}.txt").write_text(words, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The folder of a whole family around a tiny network, written once."""
    folder = tmp_path_factory.mktemp("families")
    return lambda name: folder / name if (folder / name).exists() else tiny_families.write(name, folder / name)


@pytest.fixture
def recipe(pictures, places, tmp_path):
    """A recipe that trains the text encoders of a tiny family too."""

    def make(output="run", name="sdxl-tiny", **tables):
        values = {
            "version": 1,
            "output": str(tmp_path / output),
            "seed": 3,
            "dataset": [{"path": str(pictures)}],
            "bucket": [{"resolution": "32x32", "num_frames": 1, "batch_size": 2}],
            "data": {"num_workers": 0},
            "objective": {"name": "epsilon", "caption_dropout": 0.3},
            "lora": {"rank": 2, "alpha": 4.0, "dropout": 0.1, "text_encoders": True},
            "precision": {"compute": "float32"},
            "train": {"max_steps": 6, "learning_rate": 0.02, "threads": 1, "ema_decay": 0.9},
            "validation": {"split": 0.0},
            "checkpoints": {"every_steps": 3},
            "exports": {"weights": "ema", "formats": FORMATS, "dtype": "float32"},
        } | tiny_families.recipe_of(name, places(name))
        for key, changes in tables.items():
            values[key] = {**values.get(key, {}), **changes}
        return values

    return make


def of_texts(state):
    return {
        name: value for name, value in state.items() if text_encoders.part_of(name.removeprefix("model.")) is not None
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_killed_and_resumed_equals_the_uninterrupted_run(recipe, tmp_path, name):
    """Losses, weights, averages and moments of both parts agree to the last bit, and both parts have learnt."""
    assert children.train(recipe("calm", name)) == [0]
    assert children.train(recipe("killed", name), fault=("after the average moved", 5)) == [killing.SELF_KILLED]
    assert children.train(recipe("killed", name)) == [0]
    assert losses(tmp_path / "killed") == losses(tmp_path / "calm")
    one, other = tensors(tmp_path / "calm"), tensors(tmp_path / "killed")
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    learnt = {key: value.any() for key, value in of_texts(one).items() if key.endswith("lora_B.default.weight")}
    assert (
        sum(map(bool, learnt.values())) >= len(learnt) // 2
    )  # what lies behind the layer that is read gets no gradient


def begins_alike(values, run):
    """Whether a run that begins with each of a run's files has its numbers."""
    wanted = inject.weights(LoadedModel.load(run).denoiser.module)
    for format in FORMATS:
        (file,) = (run / "exports").glob(f"*6-ema-lora-{format}.safetensors")
        begun = recipe_file.parse(values | {"lora": values["lora"] | {"weights": str(file)}})
        found = inject.weights(build.denoiser(begun, torch.device("cpu")).module)
        if not all(torch.equal(value, found[key]) for key, value in wanted.items()):
            return False
    return True


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_the_familys_pipeline_draws_what_we_do_with_the_file(recipe, places, tmp_path, name):
    """From the captions themselves, by the text encoders of the pipeline with the file's LoRA."""
    samples = {"prompts": [PROMPT], "height": 32, "width": 32, "num_frames": 1, "num_inference_steps": 4}
    assert children.train(recipe(name=name, samples=samples)) == [0]
    made = LoadedModel.load(tmp_path / "run").generate(
        [PROMPT], GenerateOptions(Shape(1, 32, 32), 24.0, 4, 3.0, seed=0)
    )
    kind = getattr(diffusers, made.by.split()[0])

    def drawn(format=None, place=None):
        pipeline = kind.from_pretrained(place or places(name), dtype=torch.float32)
        pipeline.set_progress_bar_config(disable=True)
        if format is not None:
            pipeline.load_lora_weights(tmp_path / "run" / "exports" / f"step-000000006-ema-lora-{format}.safetensors")
        settings = {"num_inference_steps": 4, "guidance_scale": 3.0, "output_type": "np", "return_dict": False}
        generator = torch.Generator().manual_seed(0)
        frames = pipeline(PROMPT, height=32, width=32, generator=generator, **settings)[0]
        return (frames * 255).round().astype(int)

    without = drawn()
    assert np.abs(without - made.clips[0]).max() > 8
    for format in ("diffusers", "kohya"):
        assert np.abs(made.clips[0] - drawn(format)).max() <= 1, format
    assert begins_alike(recipe(name=name), tmp_path / "run")
    for format in FORMATS:
        file = tmp_path / "run" / "exports" / f"step-000000006-ema-lora-{format}.safetensors"
        applied = tmp_path / format
        shutil.copytree(places(name), applied)
        for part in ("unet", *sorted(folder.name for folder in applied.glob("text_encoder*"))):
            request = ApplyLorasRequest(
                base=places(name), files=(str(file),), output=tmp_path / f"{format}-{part}", part=part
            )
            other = "(--part text_encoder)" if part == "unet" else "of the network (without --part)"
            assert other in " ".join(apply.apply(request).notes)
            shutil.rmtree(applied / part)
            request.output.rename(applied / part)
        assert np.abs(made.clips[0] - drawn(place=applied)).max() <= 1, format


@pytest.mark.slow
def test_each_part_has_its_rate(recipe, tmp_path):
    """With a rate of nearly nothing, text encoders stand still while the network learns; resumed, too."""
    still = {"text_encoder_learning_rate": 1e-30}
    assert children.train(recipe(train=still | {"max_steps": 3})) == [0]
    assert children.train(recipe(train=still)) == [0]
    found = inject.weights(LoadedModel.load(tmp_path / "run", averaged=False).denoiser.module)
    moved = {
        text_encoders.part_of(name) for name, value in found.items() if "lora_B" in name and value.abs().max() > 1e-9
    }
    assert moved == {None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"strategy": "fsdp"}},
        {"parallel": {"offload": True}},
        {"model": {"gradient_checkpointing": True}},
        {"train": {"compile": True, "compile_backend": "eager"}},
        {"encode": {"store": True}},
    ],
)
def test_losses_are_the_same_however_it_is_computed(recipe, tmp_path, changes):
    """On two ranks in shards, in CPU memory, recomputed, compiled, and from a store of latents and numbers of words."""
    plan = {"micro_batches_per_step": 2, "same_bucket_run": 2, "gradient_accumulation_steps": 1}
    lora, train = {"dropout": 0.0}, plan | {"max_steps": 3, "learning_rate": 1e-3}
    world = 2 if changes.get("parallel") == {"strategy": "fsdp"} else 1
    assert children.train(recipe("plain", lora=lora, train=train)) == [0]
    changes = {**changes, "train": train | changes.get("train", {}), "lora": lora}
    assert children.train(recipe("other", **changes), world=world) == [0] * world
    plain, other = ({k: float.fromhex(v) for k, v in losses(tmp_path / run).items()} for run in ("plain", "other"))
    assert other == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("name", ["sdxl-tiny", "sd1.5-tiny", "sd1.5-clip-skip-2"])
def test_captions_are_embedded_as_by_the_family(recipe, name):
    """Words, the empty caption, the layer that is read and the pooled embedding are those of the pipeline in float32."""
    tables = {"text_encoder": {"name": name}} if name.endswith("2") else {}
    parsed = recipe_file.parse(recipe(name="sd1.5-tiny" if tables else name, **tables))
    config, captions = parsed.text_encoder, [PROMPT, "", "waves"]
    family = registry.load_network(registry.family_of_text(config.name))
    pipeline = encoders.load_pipeline(config, dtype=torch.float32)
    with torch.no_grad():
        tokens, _, pooled = family.encode_text[config.name](pipeline, captions, config.max_length, [])
        denoiser = build.denoiser(parsed, torch.device("cpu"))
        found = denoiser.embed(build.text_encoder(parsed, torch.device("cpu")).encode(captions).tokens)
    torch.testing.assert_close(found.tokens, tokens)
    assert (found.pooled.shape[1] == 0) if pooled is None else torch.allclose(found.pooled, pooled, atol=1e-5)


@pytest.mark.parametrize(
    ("tables", "field"),
    [
        ({"text_encoder": {"device": "cpu"}}, "text_encoder.device"),
        (
            {"lora": {"text_encoders": False}, "train": {"text_encoder_learning_rate": 1e-4}},
            "text_encoder_learning_rate",
        ),
        ({"train": {"optimizer": "prodigy", "learning_rate": 1.0, "text_encoder_learning_rate": 1.0}}, "learning_rate"),
    ],
)
def test_what_does_not_go_with_it_is_refused(recipe, tables, field):
    """By field, value and remedy, before anything is loaded."""
    with refused("text-encoders-not-trained", says=field):
        recipe_file.parse(recipe(**tables))


def test_other_text_encoders_are_refused():
    values = tiny_recipe.least(lora={"text_encoders": True})
    with refused("text-encoders-not-trained", "lora.text_encoders", says='"sdxl"'):
        recipe_file.parse(values)


@pytest.mark.parametrize("name", ["sdxl", "sd1.5"])
def test_the_published_sizes_need_no_weights(name):
    """An estimate builds the published text encoders by their sizes: as many numbers as the registry says."""
    config = TextEncoderConfig(name=name, weights="nobody/nothing")
    built = trained_texts.on_meta(config)
    assert sum(p.numel() for each in built for p in each.parameters()) == registry.TEXT_ENCODERS[name].parameters
