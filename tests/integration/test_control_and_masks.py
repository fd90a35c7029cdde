"""Controls, sources, loss masks and first frames, from files to a trained model and what it generates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import children
import numpy as np
import pyarrow.csv
import pytest
import tiny_recipe
import torch
import transformers
from examples import training_example, validation_example
from PIL import Image
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core.errors import UserError
from reelworks.data.loader import prefetch
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media import probe
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import writers
from reelworks.training.assembly import build
from reelworks.training.loop import replay
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step.examples import Predicted

SIZE = (32, 48)


def picture(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.broadcast_to(np.asarray(value, np.uint8), (*SIZE, 3)) if np.ndim(value) < 3 else value
    Image.fromarray(np.ascontiguousarray(array)).save(path)


def half_mask():
    """The right half counts."""
    mask = np.zeros((*SIZE, 3), np.uint8)
    mask[:, SIZE[1] // 2 :] = 255
    return mask


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Ten pictures; of one the control is missing, of one damaged, of one the mask lets nothing count."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for i in range(10):
        name = f"{'deep/' if i % 2 else ''}{i}"
        picture(folder / "clips" / f"{name}.png", generator.integers(0, 256, (*SIZE, 3), dtype=np.uint8))
        (folder / "clips" / f"{name}.txt").write_text(f"picture {i}", encoding="utf-8")
        picture(folder / "edges" / f"{name}.jpg", 20 * i)
        picture(folder / "masks" / f"{name}.png", half_mask() if i != 5 else 0)
    (folder / "edges/3.jpg").unlink(missing_ok=True)
    (folder / "edges/deep/3.jpg").unlink()
    (folder / "edges/4.jpg").write_bytes(b"damaged")
    return folder


@pytest.fixture
def control(pictures, tmp_path):
    """A recipe that trains a control model on them."""

    def make(**changes):
        data = {"path": str(pictures / "clips"), "control": str(pictures / "edges")}
        data |= {"loss_mask": str(pictures / "masks")}
        shown = {"prompts": ["a"], "num_frames": 1, "height": 32, "width": 48, "num_inference_steps": 2}
        tables = {
            "seed": 3,
            "bucket": [{"resolution": "32x48", "num_frames": 1, "batch_size": 3}],
            "data": {"max_decode_failures": 0.5},
            "text_encoder": {"pooled_dim": 8},
            "train": {"max_epochs": 2, "learning_rate": 1e-3},
            "validation": {"split": 0.2, "every_steps": 2, "timesteps": [500.0]},
            "samples": shown | {"control": str(pictures / "edges/6.jpg")},
        }
        return tiny_recipe.of_family("flux-control-tiny", tmp_path / "run", data, **tables) | changes

    return make


def first_batch(recipe):
    dataset.scan_recipe(recipe)
    data = RecipeData.open(recipe)
    plan = data.plan(data.plan_spec(1, 1), 0)
    pool = DecodePool(0, 60.0)
    try:
        return data, next(prefetch.read_ahead(StepSource(data, 0, 1).requests_of_step(plan, 0, 0), pool))
    finally:
        pool.close()


def test_a_control_model_trains_and_every_clip_is_accounted_for(control, pictures, tmp_path):
    """Missing and damaged controls are left out by name, an empty mask fails by name; the rest is trained, and made."""
    assert children.train(control()) == [0]
    run = tmp_path / "run"
    failures = list(events.read(run / "events.jsonl", "failure"))
    left_out = json.loads((run / "plan/summary.json").read_text(encoding="utf-8"))["reasons"]["no_companion"]
    assert {one["path"]: one["detail"] for one in left_out} == {
        "clips/deep/3.png": f"no control {pictures}/edges/deep/3.*",
        "clips/4.png": next(one["detail"] for one in left_out if "4.png" in one["path"]),
    }
    assert "edges/4.jpg is unusable" in next(one["detail"] for one in left_out if "4.png" in one["path"])
    assert [Path(failure["path"]).name for failure in failures] == ["5.png", "5.png"]
    assert all("masks/deep/5.png: the loss mask is black" in failure["reason"] for failure in failures)
    ends = list(events.read(run / "events.jsonl", "epoch_end"))
    assert all(e["planned"] == e["trained"] + e["failed"] == e["trained"] + 1 for e in ends)
    assert len(ends) == 2
    assert list((run / "samples").rglob("*.png"))

    def generate(*options):
        output = tmp_path / f"{len(options)}.png"
        command = ["generate", str(run), "--prompt", "a", "-o", str(output), "--num-frames", "1"]
        done = CliRunner().invoke(
            app, [*command, "--height", "32", "--num-inference-steps", "2", "--width", "48", *options]
        )
        return done, output

    done, output = generate("--control", str(pictures / "edges/6.jpg"))
    assert done.exit_code == 0, done.output
    with Image.open(output) as made:
        assert made.size == SIZE[::-1]
    with pytest.raises(UserError, match="--control: flux-control-tiny needs a control"):
        raise generate()[0].exception


def test_left_out_files_say_what_is_wrong(control, tmp_path):
    """`plan --rejected` names the clips without a companion, with the problem in two words."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_file.dump(recipe_file.parse(control())), encoding="utf-8")
    table = tmp_path / "left.csv"
    done = CliRunner().invoke(app, ["plan", str(recipe), "--rejected", str(table)])
    assert done.exit_code == 0, done.output
    assert "no_companion: 2" in done.output
    rows = pyarrow.csv.read_csv(table).to_pylist()
    assert {row["path"]: row["error"] for row in rows if row["reason"] == "no_companion"} == {
        "deep/3.png": "control missing",
        "4.png": "control unreadable",
    }


def test_the_loss_is_that_of_what_the_mask_shows(control):
    """From real files on: no gradient reaches the black half, and the loss is the mean over the white one."""
    recipe = recipe_file.parse(control())
    encoder = build.encoder(recipe, torch.device("cpu"))
    data, batch = first_batch(recipe)
    assert set(batch.companions) == {"control", "loss_mask"}
    for example in (
        training_example(batch, encoder, recipe.objective, seed=recipe.seed),
        validation_example(_one(batch), encoder, recipe.objective, seed=1, times=[200.0, 700.0]),
    ):
        output = torch.zeros_like(example.x0, requires_grad=True)
        losses = example.losses(Predicted(output))
        torch.autograd.backward(losses.sum())
        width = output.shape[-1]
        assert not output.grad[example.valid_mask][..., : width // 2].any()
        assert output.grad[example.valid_mask][..., width // 2 :].all()
        white = (example.x0 - example.noise)[..., width // 2 :].square().mean(dim=(1, 2, 3, 4))
        torch.testing.assert_close(losses[example.valid_mask].detach(), white[example.valid_mask])
        assert example.inputs.control.shape == example.x0.shape
    counted = batch.is_valid.tolist()
    reasons = dict(batch.failures)
    for place, row in enumerate(data.rows.find(batch.request.uids).tolist()):
        empty = data.rows.path[row].as_py() == "deep/5.png"
        assert counted[place] is not empty
        assert (place in reasons) is empty


def _one(batch):
    """The first clip of a micro-batch that counts, alone."""
    work, at = batch.request, [int(batch.is_valid.int().argmax())]
    arrays = {name: getattr(work, name)[at] for name in ("uids", "copies", "repeat_index")}
    tuples = {name: tuple(getattr(work, name)[i] for i in at) for name in ("requests", "captions", "fps", "crops")}
    return replace(
        batch,
        request=replace(work, **arrays, **tuples, companions={}),
        frames=batch.frames[at],
        is_valid=batch.is_valid[at],
        companions={name: frames[at] for name, frames in batch.companions.items()},
    )


@pytest.fixture(scope="module")
def clip_model(tmp_path_factory):
    """A tiny CLIP of random weights, in diffusers' layout."""
    folder = tmp_path_factory.mktemp("clip")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPVisionConfig(image_size=64, patch_size=4, **sizes)  # 257 tokens
    transformers.CLIPVisionModel(config).save_pretrained(folder / "image_encoder")
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    processor.save_pretrained(folder / "image_processor")
    return folder


def clips_in(folder):
    """Four clips of noise with captions."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for i in range(4):
        frames = generator.integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
        writers.write_video(folder / f"{i}.mp4", frames, 24.0)
        (folder / f"{i}.txt").write_text(f"clip {i}", encoding="utf-8")
    return folder


def values_for(name, clip_model, tmp_path):
    """A recipe that trains a tiny model, to which frames are given, on these clips for two steps."""
    entry = [{"resolution": "32x32", "num_frames": 5, "batch_size": 2}]
    tables = {"model": {"image_encoder": str(clip_model)}, "train": {"max_epochs": "none", "max_steps": 2}}
    return tiny_recipe.of_family(name, tmp_path / "run", {"path": str(tmp_path / "clips")}, bucket=entry, **tables)


def test_clips_are_trained_from_their_first_frame_and_made_from_a_picture(clip_model, tmp_path):
    """An i2v model trains on clips alone, previews and generates from a picture, and says so where there is none."""
    clips_in(tmp_path / "clips")
    picture(tmp_path / "begin.png", 200)
    values = values_for("wan-i2v-tiny", clip_model, tmp_path)
    small = {"prompts": ["a"], "num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 2}
    with pytest.raises(UserError, match=r"samples\.reference: .*from a first frame"):
        recipe_file.parse(values | {"samples": small})
    left_out = {"prompts": ["a"], "num_inference_steps": 2}  # sizes, which then are those of the bucket
    begun = left_out | {"reference": str(tmp_path / "begin.png")}
    assert children.train(values | {"samples": left_out}) == [1]
    assert "samples.reference" in children.output(values)
    assert children.train(values | {"samples": begun}) == [0]
    run = tmp_path / "run"
    (preview,) = (run / "samples").rglob("*.mp4")
    probed = probe.probe(preview)
    assert (probed.num_frames, probed.height, probed.width) == (5, 32, 32)
    command = ["generate", str(run), "--prompt", "a", "-o", str(tmp_path / "made.mp4"), "--num-frames", "5"]
    command += ["--height", "32", "--width", "32", "--num-inference-steps", "2"]
    done = CliRunner().invoke(app, [*command, "--reference", str(tmp_path / "begin.png")])
    assert done.exit_code == 0, done.output
    without = CliRunner().invoke(app, command)
    assert "--reference" in str(without.exception)


@pytest.mark.slow(
    reason="a first frame alone and VACE, which takes a last one too, are trained and made above and below"
)
def test_clips_are_trained_from_both_ends_and_made_between_two_pictures(clip_model, tmp_path):
    """A model of first and last frames previews and generates between two, and says so where one is missing."""
    clips_in(tmp_path / "clips")
    for name, shade in (("begin", 200), ("end", 20), ("other", 250)):
        picture(tmp_path / f"{name}.png", shade)
    small = {"prompts": ["a"], "num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 2}
    values = values_for("wan-flf2v-tiny", clip_model, tmp_path)
    small["reference"] = str(tmp_path / "begin.png")
    with pytest.raises(UserError, match=r"samples\.last_frame: .*from a last frame"):
        recipe_file.parse(values | {"samples": small})
    assert children.train(values | {"samples": small | {"last_frame": str(tmp_path / "end.png")}}) == [0]
    assert len(list((tmp_path / "run" / "samples").rglob("*.mp4"))) == 1
    command = ["generate", str(tmp_path / "run"), "--prompt", "a", "--reference", str(tmp_path / "begin.png")]
    command += ["--num-frames", "5", "--height", "32", "--width", "32", "--num-inference-steps", "2"]
    made = []
    for end in ("end", "other"):
        out = tmp_path / f"{end}.mp4"
        done = CliRunner().invoke(app, [*command, "-o", str(out), "--last-frame", str(tmp_path / f"{end}.png")])
        assert done.exit_code == 0, done.output
        made.append(out.read_bytes())
    assert made[0] != made[1]
    without = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "none.mp4")])
    assert "--last-frame" in str(without.exception)


def test_parts_of_clips_are_trained_and_kept(tmp_path):
    """VACE learns with controls and masks, the same from the store, and keeps what a mask or given frames say."""
    clips_in(tmp_path / "clips")
    size = {"num_frames": 5, "height": 32, "width": 32}
    for i in range(4):
        frames = np.full((7, 32, 32, 3), 60 * i, np.uint8)
        (tmp_path / "edges").mkdir(exist_ok=True)
        writers.write_video(tmp_path / "edges" / f"{i}.mp4", frames, 24.0)
        mask = np.zeros((32, 32, 3), np.uint8)
        mask[:, 16:] = 255
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(mask).save(tmp_path / "masks" / f"{i}.png")
    (tmp_path / "cats").mkdir()
    for i in range(2):  # the others have no reference picture
        picture(tmp_path / "cats" / f"{i}.png", 150 + i)
    picture(tmp_path / "begin.png", 200)
    beside = {"control": str(tmp_path / "edges"), "mask": str(tmp_path / "masks")}
    beside |= {"source": str(tmp_path / "cats"), "min_sources": 0}
    values = values_for("wan-vace-tiny", None, tmp_path)
    plain = values["dataset"][0]
    values |= {"model": {"name": "wan-vace-tiny"}, "dataset": [plain | beside]}
    values["data"] |= {"clip_start": "start"}
    kept = {"inpaint": str(tmp_path / "clips" / "0.mp4"), "mask": str(tmp_path / "masks" / "0.png")}
    samples = {"prompts": ["a"], "num_inference_steps": 2} | size
    begin = str(tmp_path / "begin.png")
    with pytest.raises(UserError, match=r"samples\.mask: .*goes with that clip"):
        recipe_file.parse(values | {"samples": samples | {"mask": kept["mask"]}})
    with pytest.raises(UserError, match=r"dataset\.mask: wan-tiny does not take a mask"):
        recipe_file.parse(values | {"model": {"name": "wan-tiny"}, "dataset": [plain | {"mask": beside["mask"]}]})
    values |= {"objective": {"mask_ratios": {"image_head": 0.3, "inpaint": 0.3}}}
    live = values | {"samples": samples | kept | {"source": begin}}
    stored = live | {"output": str(tmp_path / "stored"), "encode": {"store": True, "folder": str(tmp_path / "encoded")}}
    losses = []
    for recipe in (live, stored):
        assert children.train(recipe) == [0], children.output(recipe)
        steps = events.read(RunFolder(Path(recipe["output"])).events_file, "step")
        losses.append([step["loss"] for step in steps])
    assert losses[0] == losses[1]
    works = [work for step in (1, 2) for work in replay.replay_step(RunFolder(tmp_path / "run"), step).columns]
    masks = [mask for work in works for mask in work.masks]
    assert None in masks  # these have the mask of their file
    assert any(mask is not None for mask in masks)
    command = ["generate", str(tmp_path / "run"), "--prompt", "a", "--num-inference-steps", "2"]
    command += [part for key, value in size.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    made = set()
    for i, given in enumerate(
        (
            [],
            ["--reference", begin, "--condition-frames", "1"],
            ["--last-frame", begin],
            ["--source", begin],
            ["--inpaint", kept["inpaint"], "--mask", kept["mask"]],
        )
    ):
        out = tmp_path / f"made-{i}.mp4"
        done = CliRunner().invoke(app, [*command, "-o", str(out), *given])
        assert done.exit_code == 0, done.output
        made.add(out.read_bytes())
    assert len(made) == 5
