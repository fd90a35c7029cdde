"""A LoRA on 20 pictures: all of them trained, the loss falls, a kill costs nothing, the file holds what was learnt."""

from __future__ import annotations

import dataclasses
import tomllib
from collections import Counter
from pathlib import Path

import children
import diffusers
import killing
import numpy as np
import pytest
import tiny_families
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_kill_and_resume import losses
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core import machine
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.checkpoint import load, names
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models.adapters import files, inject
from reelworks.models.base_model import Base
from reelworks.models.export import export
from reelworks.models.export import lora as lora_file
from reelworks.testing import contract
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file
from reelworks.training.step.state import TrainState

RECIPE = Path(__file__).parents[2] / "recipes" / "lora-20-pictures.toml"
PROMPT = "two cats sit on a wall in the sun"
TEXT_IN_BFLOAT16 = {"default": torch.float32} | dict.fromkeys(("text_encoder", "text_encoder_2"), torch.bfloat16)
FORMATS = ["diffusers", "comfyui", "kohya"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Twenty pictures of five shapes, so that buckets hold fewer than a batch."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    sizes = [(32, 48), (48, 32), (32, 32), (32, 64), (64, 32)]
    for i in range(20):
        height, width = sizes[i % 5]
        colour = generator.integers(0, 256, 3, dtype=np.uint8)
        Image.fromarray(np.broadcast_to(colour, (height, width, 3)).copy()).save(folder / f"{i:02}.png")
        (folder / f"{i:02}.txt").write_text(f"colour number {i}", encoding="utf-8")
    return folder


@pytest.fixture
def lora(pictures, tmp_path):
    """The recipe that comes with the project, on a tiny base without weights."""

    def make(output="run", name="wan-tiny", **train):
        values = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
        values["bucket"][0]["resolution"] = "32px"
        values["buckets"]["batch_size"] = 8
        values["exports"] |= {"formats": FORMATS, "dtype": "float32"}
        return values | {
            "output": str(tmp_path / output),
            "dataset": [{"path": str(pictures)}],
            "model": {"name": name},
            "lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1, "targets": ["to_q", "to_out.0", "proj_out"]},
            "autoencoder": {"stride": 4},
            "text_encoder": {"dim": 16, "max_length": 6, "pooled_dim": 8},
            "precision": {"compute": "float32"},
            "train": {"max_epochs": 6, "learning_rate": 0.02, "threads": 1, "ema_decay": 0.9} | train,
            "checkpoints": {"every_steps": 5, "keep_last": 2},
        }

    return make


def trained(run):
    return Counter((line["epoch"], Path(c["path"]).name) for line in children.debug_lines(run) for c in line["trained"])


@pytest.mark.parametrize(("name", "world"), [("wan-tiny", 1), pytest.param("flux-tiny", 2, marks=pytest.mark.slow)])
def test_every_picture_is_trained_each_epoch_and_the_loss_falls(lora, pictures, tmp_path, name, world):
    """Buckets of four pictures, batches of eight, one process or two: each picture once per epoch."""
    assert children.train(lora(name=name), debug=True, world=world) == [0] * world
    names = {p.name for p in pictures.glob("*.png")}
    assert trained(tmp_path / "run") == Counter((epoch, n) for epoch in range(6) for n in names)
    found = [float.fromhex(value) for value in losses(tmp_path / "run").values()]
    third = len(found) // 3
    assert np.mean(found[-third:]) < 0.9 * np.mean(found[:third])


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_lora_that_begins_with_zeros_is_told_by_its_layers(lora, tmp_path, world):
    """On each of the ranks that share its weights alike, and never for one that learns."""
    strategy = {"parallel": {"strategy": "fsdp"}} if world > 1 else {}
    train = {"max_epochs": "none", "max_steps": 6}
    assert children.train(lora("learns", **train) | strategy, world=world) == [0] * world
    assert events.timeline(tmp_path / "learns/events.jsonl", "idle_layers") == []
    (file,) = (tmp_path / "learns/exports").glob("*6-ema-lora-diffusers.safetensors")
    save_file(
        {key: torch.zeros_like(value) for key, value in load_file(file).items()},
        zeros := tmp_path / "zeros.safetensors",
    )
    idle = lora("idle", **train) | strategy
    idle["lora"]["weights"] = str(zeros)
    assert children.train(idle, world=world) == [0] * world
    (told,) = events.timeline(tmp_path / "idle/events.jsonl", "idle_layers")
    output = " ".join(children.output(idle).split())
    assert told["problem"] == "zero"
    assert len(told["layers"]) == len(load_file(file)) // 2
    assert f"step 6: {told['message']}" in output
    idle["train"]["max_steps"] = 12
    assert children.train(idle, world=world) == [0] * world
    assert events.timeline(tmp_path / "idle/events.jsonl", "idle_layers") == [told]


@pytest.mark.slow
def test_clips_that_preserve_the_base_are_trained_on_one_process_and_on_two(lora, pictures, tmp_path):
    """With ranks that have such clips beside ranks that have none: all are trained, and losses agree."""
    values = lora(max_steps=3)
    values["dataset"].append({"path": str(pictures), "name": "class", "prior_prediction": True})
    values["buckets"]["batch_size"] = 2
    values["train"] |= {"gradient_accumulation_steps": 1, "micro_batches_per_step": 4, "same_bucket_run": 2}
    for world in (1, 2):
        assert children.train(values | {"output": str(tmp_path / f"w{world}")}, world=world) == [0] * world
    one, two = ({k: float.fromhex(v) for k, v in losses(tmp_path / f"w{w}").items()} for w in (1, 2))
    assert one == pytest.approx(two, rel=1e-4)


def tensors(run):
    """The newest checkpoint's tensors, flat."""
    recipe = recipe_file.load(run / "recipe.toml")
    state = TrainState.start(build.denoiser(recipe, torch.device("cpu")), recipe.train).state_dict()
    load.load(CheckpointFolder(run / "checkpoints").list()[-1].path, state)
    moments = {f"{n}.{k}": v for n, one in state["optimizer"]["state"].items() for k, v in one.items()}
    return {**{f"model.{n}": v for n, v in state["model"].items()}, **state["ema"], **moments}


def test_killed_and_resumed_equals_the_uninterrupted_run(lora, tmp_path):
    """With dropout too: losses and the whole state of the LoRA agree to the last bit, and no base is saved."""
    train = {"max_steps": 8}
    assert children.train(lora("calm", **train)) == [0]
    fault = ("after the average moved", 7)
    assert children.train(lora("killed", **train), fault=fault) == [killing.SELF_KILLED]
    assert children.train(lora("killed", **train)) == [0]
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    assert losses(killed) == losses(calm)
    one, other = tensors(calm), tensors(killed)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert all("lora_" in name for name in one)


OTHER_TYPES = {
    "lokr": {"type": "lokr", "rank": 2, "alpha": 6.5, "dropout": 0.1},
    "loha": {"type": "loha", "rank": 2, "alpha": 6.5, "dropout": 0.1},
    "oft": {"type": "oft", "block_size": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_other_types_resume_to_the_last_bit_shard_and_merge(lora, tmp_path, kind):
    """As a LoRA does: killed and resumed, on two ranks under FSDP2, exported, begun with, and added to the base."""

    def make(output, **train):
        values = lora(output, **train)
        values["lora"] = OTHER_TYPES[kind] | {"targets": ["to_q", "to_out.0", "proj_out"]}
        values["exports"]["formats"] = ["diffusers"] if kind == "oft" else FORMATS
        return values

    assert children.train(make("calm", max_steps=8)) == [0]
    fault = ("after the average moved", 7)
    assert children.train(make("killed", max_steps=8), fault=fault) == [killing.SELF_KILLED]
    assert children.train(make("killed", max_steps=8)) == [0]
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    assert losses(killed) == losses(calm)
    one, other = tensors(calm), tensors(killed)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    sharded = make("sharded", max_steps=2) | {"parallel": {"strategy": "fsdp"}}
    assert children.train(sharded, world=2) == [0, 0]
    for file in (calm / "exports").glob("*lora*.safetensors"):
        begun = make(f"begun-{file.stem}", max_steps=1, learning_rate=1e-30)
        begun["lora"]["weights"] = str(file)
        assert children.train(begun) == [0], children.output(begun)
    trained = LoadedModel.load(calm, to_merge=True)
    inputs = contract.example(Shape(1, 4, 4), "wan-tiny")
    channels = trained.denoiser.latent_channels
    inputs = dataclasses.replace(
        inputs, latent=torch.randn(2, channels, 1, 4, 4), text=torch.randn(2, 6, 16), pooled=torch.randn(2, 8)
    )
    with torch.no_grad():
        wanted = trained.denoiser.predict(inputs)
        merged = LoadedModel.load(calm, to_merge=True).merge()
        recipe = recipe_file.load(calm / "recipe.toml")
        base = build.denoiser(recipe.model_copy(update={"lora": None}), torch.device("cpu"))
        assert not torch.allclose(base.predict(inputs), wanted)
        base.module.load_state_dict(merged)
        torch.testing.assert_close(base.predict(inputs), wanted)


SMALL_GPU = {"model": {"name": "wan-tiny", "gradient_checkpointing": True}}


@pytest.mark.slow
def test_killed_and_resumed_on_a_base_of_4_bits(lora, tmp_path):
    """The base is quantised again to the same codes: nothing of it is saved, and no bit of the LoRA differs."""

    def recipe(output):
        values = lora(output, max_steps=4) | SMALL_GPU | {"precision": {"compute": "bfloat16"}}
        values["checkpoints"] = {"every_steps": 2}
        values["lora"] = values["lora"] | {"base": "nf4", "dora": True}
        values["exports"]["formats"] = ["diffusers"]
        return values

    assert children.train(recipe("calm")) == [0]
    fault = ("after the average moved", 3)
    assert children.train(recipe("killed"), fault=fault) == [killing.SELF_KILLED]
    assert children.train(recipe("killed")) == [0]
    one, other = tensors(tmp_path / "calm"), tensors(tmp_path / "killed")
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert one.keys() == other.keys()


@pytest.mark.slow
def test_weights_in_cpu_memory_change_nothing(lora, tmp_path):
    """One process that fetches block by block, killed and resumed, ends as one that holds all, to the last bit."""

    def recipe(output, **parallel):
        values = lora(output, max_steps=4) | SMALL_GPU | {"parallel": parallel}
        return values | {"checkpoints": {"every_steps": 2}}

    assert children.train(recipe("held")) == [0]
    fault = ("after the average moved", 3)
    assert children.train(recipe("fetched", offload=True), fault=fault) == [killing.SELF_KILLED]
    assert children.train(recipe("fetched", offload=True)) == [0]
    held, fetched = tmp_path / "held", tmp_path / "fetched"
    assert losses(held) == losses(fetched)
    one, other = tensors(held), tensors(fetched)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert one.keys() == other.keys()


def test_the_strength_of_a_lora_multiplies_what_it_adds(lora, tmp_path):
    assert children.train(lora(max_steps=2)) == [0]
    merged = [LoadedModel.load(tmp_path / "run", to_merge=True, lora_scale=scale).merge() for scale in (0.0, 1.0, 2.5)]
    changed = 0
    for name, base in merged[0].items():
        once, more = (other[name] - base for other in merged[1:])
        assert torch.allclose(more, 2.5 * once, atol=1e-6), name
        changed += bool(once.any())
    assert changed


def test_files_hold_what_the_checkpoint_does(lora, tmp_path):
    """Each convention, written by the run and by hand, brings back the averaged LoRA; a run can begin with it."""
    assert children.train(lora(max_steps=5)) == [0]
    run = tmp_path / "run"
    model = LoadedModel.load(run)
    wanted = inject.weights(model.boundary.denoiser.module)
    recipe = recipe_file.load(run / "recipe.toml")
    for format in FORMATS:
        by_run = run / "exports" / f"step-000000005-ema-lora-{format}.safetensors"
        by_hand = tmp_path / f"{format}.safetensors"
        command = ["checkpoints", "export", str(run), "-o", str(by_hand), "--dtype", "float32", "--format", format]
        assert CliRunner().invoke(app, command).exit_code == 0
        one, other = load_file(by_run), load_file(by_hand)
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in one.items())
        live = tmp_path / f"live-{format}.safetensors"
        state = {"model": wanted, "ema": {}}
        how = lora_file.lora_file_of(run / "recipe.toml", format)
        export.export_weights(state, live, weights="ema", dtype="float32", about={}, lora=how)
        assert all(torch.equal(value, one[name]) for name, value in load_file(live).items())
        begun = recipe.model_copy(update={"lora": recipe.lora.model_copy(update={"weights": str(by_run)})})
        found = inject.weights(build.denoiser(begun, machine.default_device()).module)
        assert all(torch.equal(value, found[name]) for name, value in wanted.items())


def on_file(lora, tmp_path, number):
    """The recipe on a base in a file; each number has its own numbers."""
    values = lora()
    plain = recipe_file.parse(values).model_copy(update={"lora": None, "seed": number})
    module = build.denoiser(plain, torch.device("cpu")).module
    path = tmp_path / f"base-{number}.safetensors"
    save_file({k: v.contiguous() for k, v in module.state_dict().items()}, path)
    return values | {"model": {"name": "wan-tiny", "weights": str(path)}}


def test_a_lora_never_goes_on_upon_another_base(lora, tmp_path):
    """On other weights, or with another alpha, a resume is refused with both named; on a copy of the same it goes on."""
    one, other = (on_file(lora, tmp_path, number) for number in (1, 2))
    one["train"] |= {"max_steps": 1}
    other["train"] |= {"max_steps": 2}
    assert children.train(one) == [0]
    assert children.train(other) != [0]
    said = children.output(other)
    assert "the LoRA was trained on" in said
    assert "base-1.safetensors (wan-tiny," in said
    assert "base-2.safetensors (wan-tiny," in said
    model = Path(one["model"]["weights"])
    copied = model.rename(tmp_path / "moved.safetensors")
    other["model"]["weights"] = str(copied)
    assert children.train(other) == [0]
    stronger = other | {"lora": other["lora"] | {"alpha": 13.0}, "train": other["train"] | {"max_steps": 3}}
    assert children.train(stronger) != [0]
    assert "the checkpoint's LoRA has alpha 8" in children.output(stronger)
    with safe_open(next((tmp_path / "run" / "exports").glob("step-000000002*kohya*")), "pt") as file:
        told = file.metadata()
    assert told["ss_sd_model_name"] == copied.name
    assert Base.from_json(told["reelworks_base"]).weights == copied.name
    save_file({k: v + 1 for k, v in load_file(copied).items()}, copied)
    with pytest.raises(UserError, match="the LoRA was trained on"):
        LoadedModel.load(tmp_path / "run")


@pytest.mark.slow
def test_a_lora_file_begins_another_run(lora, tmp_path):
    """--load with fused layers of a release, into sharded ones: the run has the file's numbers."""
    first = lora("first", "flux-tiny", max_steps=2)
    assert children.train(first) == [0]
    file = next((tmp_path / "first" / "exports").glob("*comfyui*"))
    options = {"load": str(file), "weights_only": True}
    second = lora("second", "flux-tiny", max_steps=1, learning_rate=1e-30)
    assert children.train(second, world=2, **options) == [0, 0]
    wanted = LoadedModel.load(tmp_path / "first").boundary.denoiser.module
    found = LoadedModel.load(tmp_path / "second").boundary.denoiser.module
    for name, value in inject.weights(wanted).items():
        assert torch.equal(value, inject.weights(found)[name])
    wrong = lora("wrong", "flux-tiny", max_steps=1)
    wrong["lora"]["alpha"] = 2
    assert children.train(wrong, load=str(tmp_path / "first"), weights_only=True) != [0]
    assert "lora.alpha = 2.0: the checkpoint's LoRA has alpha 8" in children.output(wrong)
    whole = lora("whole", "flux-tiny", max_steps=1)
    del whole["lora"]
    assert children.train(whole, **options) != [0]
    assert "this is a LoRA" in children.output(whole)


def test_a_lora_to_begin_with_is_read_once(lora, tmp_path):
    """Its file may be gone when the run goes on or is generated from: the checkpoint has all of it."""
    values = lora(max_steps=1)
    recipe, file = recipe_file.parse(values), tmp_path / "first.safetensors"
    state = inject.weights(build.denoiser(recipe, torch.device("cpu")).module)
    made = files.to_file(state, "diffusers", adapter=recipe.lora.adapter)
    save_file({name: value + 0.1 for name, value in made.tensors.items()}, file, made.header)
    values["lora"] = values["lora"] | {"weights": str(file)}
    assert children.train(values) == [0]
    file.unlink()
    values["train"]["max_steps"] = 2
    assert children.train(values) == [0]
    found = inject.weights(LoadedModel.load(tmp_path / "run").denoiser.module)
    assert all(value.any() for value in found.values())


@pytest.mark.parametrize("base", [pytest.param("float32", marks=pytest.mark.slow), "nf4"])
def test_merged_weights_answer_as_the_lora_does(lora, tmp_path, base):
    """Exported with --merge, base and LoRA are weights of the plain network, whatever the base was stored in."""
    values = lora(max_steps=3)
    values["lora"]["base"] = base
    assert children.train(values) == [0]
    path = tmp_path / "merged.safetensors"
    command = ["checkpoints", "export", str(tmp_path / "run"), "-o", str(path), "--dtype", "float32", "--merge"]
    assert CliRunner().invoke(app, command).exit_code == 0
    trained = LoadedModel.load(tmp_path / "run", to_merge=True).boundary
    plain = contract.build("wan-tiny")
    assert load_file(path).keys() == plain.module.state_dict().keys()
    recipe = recipe_file.load(tmp_path / "run" / "recipe.toml")
    model = recipe.model.model_copy(update={"weights": str(path)})
    merged = build.denoiser(recipe.model_copy(update={"lora": None, "model": model}), machine.default_device())
    channels = merged.latent_channels
    inputs = contract.example(Shape(1, 4, 4), "wan-tiny")
    inputs = dataclasses.replace(
        inputs, latent=torch.randn(2, channels, 1, 4, 4), text=torch.randn(2, 6, 16), pooled=torch.randn(2, 8)
    )
    inputs = inputs.each(lambda tensor: tensor.to(machine.default_device()))
    with torch.no_grad():
        wanted, found = trained.denoiser.predict(inputs), merged.predict(inputs)
    torch.testing.assert_close(found, wanted)
    result = CliRunner().invoke(app, [*command, "--format", "kohya"])
    assert result.exit_code != 0


def test_the_average_is_looked_at_without_dropout(lora):
    """Validation and previews see all of the LoRA; training goes on with dropout."""
    recipe = recipe_file.parse(lora())
    state = TrainState.start(build.denoiser(recipe, torch.device("cpu")), recipe.train)
    with state.averaged():
        assert not any(module.training for module in state.module.modules())
    assert all(module.training for module in state.module.modules())


@pytest.mark.parametrize("name", [pytest.param("wan-tiny", marks=pytest.mark.slow), "flux-tiny"])
def test_the_familys_pipeline_draws_what_we_do_with_the_file(lora, name, tmp_path):
    """Trained on top of a published family: its pipeline with the exported file draws what `generate` does."""
    settings = {"expand_timesteps": True} if name == "wan-tiny" else {}
    place = tiny_families.write(name, tmp_path / "family", **settings)
    recipe = lora(max_epochs=2) | tiny_families.recipe_of(name, place)
    recipe["lora"] = {"rank": 4, "alpha": 6.5}
    recipe["samples"] = {"prompts": [PROMPT], "height": 32, "width": 32, "num_frames": 1}
    assert children.train(recipe) == [0]
    run = tmp_path / "run"
    (preview,) = (e for e in events.read(run / "events.jsonl") if e["kind"] == "samples")
    pipeline = getattr(diffusers, preview["by"].split()[0]).from_pretrained(place, dtype=TEXT_IN_BFLOAT16)
    pipeline.set_progress_bar_config(disable=True)

    def drawn():
        embedded = encoded(pipeline)
        frames = pipeline(
            **embedded,
            height=32,
            width=32,
            num_inference_steps=4,
            guidance_scale=2.0,
            generator=torch.Generator().manual_seed(0),
            output_type="np",
            return_dict=False,
            **({"num_frames": 1} if name == "wan-tiny" else {}),
        )[0]
        return (frames.reshape(1, 32, 32, 3) * 255).round().astype(int)

    def encoded(pipeline):
        values = pipeline.encode_prompt(PROMPT, "", max_sequence_length=12)
        keys = ["prompt_embeds", "negative_prompt_embeds"]
        if name == "flux-tiny":
            values = pipeline.encode_prompt(PROMPT, PROMPT, max_sequence_length=12)[:2]
            keys = ["prompt_embeds", "pooled_prompt_embeds"]
        return dict(zip(keys, (v.detach().float() for v in values), strict=True))

    without = drawn()
    pipeline.load_lora_weights(run / "exports" / f"{names.of_step(last_step(run))}-ema-lora-diffusers.safetensors")
    made = LoadedModel.load(run).generate([PROMPT], GenerateOptions(Shape(1, 32, 32), 24.0, 4, 2.0, seed=0))
    assert np.abs(made.clips[0] - drawn()).max() <= 1
    assert np.abs(without - drawn()).max() > 4


def last_step(run):
    return CheckpointFolder(run / "checkpoints").list()[-1].step
