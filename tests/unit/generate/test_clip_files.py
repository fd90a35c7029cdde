"""What a request asks for is what is generated and exported: strength, weights, seeds, and files that are there stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sound_clips
import tiny_recipe
import torch
from PIL import Image
from refused import refused
from safetensors.torch import load_file

from reelworks.data.checkpoint import save
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.media import probe
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import clip_files, conditions, export_run
from reelworks.inference.generate.request import GenerateRequest
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file
from reelworks.training.step.state import TrainState

RECIPE: dict[str, Any] = tiny_recipe.least(
    bucket=[{"resolution": "32x32", "num_frames": [1, 4]}],
    model={"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
    lora={"rank": 2, "targets": ["final_layer.linear"]},
    text_encoder={"dim": 16, "max_length": 6},
    precision={"compute": "float32"},
    train={"max_steps": 4},
)
TRAINED, AVERAGED = 0.2, -0.1  # all numbers of the LoRA
SIZES: dict[str, Any] = {"height": 16, "width": 24, "num_inference_steps": 1}


def save_step(run: RunFolder, step: int, trained: float = TRAINED, averaged: float = AVERAGED) -> None:
    """Save a checkpoint whose LoRA has these numbers alone, trained and on average."""
    state = TrainState.start(
        build.denoiser(recipe_file.parse(RECIPE), torch.device("cpu")), recipe_file.parse(RECIPE).train
    )
    values = state.state_dict()
    for part, value in (("model", trained), ("ema", averaged)):
        for tensor in values[part].values():
            tensor.detach().fill_(value)
    save.save(CheckpointFolder(run.checkpoints_folder), step, values)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that trains a LoRA, with a checkpoint of step 2."""
    folder = RunFolder(tmp_path_factory.mktemp("made") / "run")
    folder.create()
    folder.recipe_file.write_text(recipe_file.dump(recipe_file.parse(RECIPE)), encoding="utf-8")
    save_step(folder, 2)
    return folder


def test_strength_and_weights_are_those_of_the_request(run: RunFolder, tmp_path: Path) -> None:
    """The LoRA is the only part of this network that is not zero, so that a picture tells what it was drawn with."""

    def picture(**options: Any) -> list[int]:
        path = tmp_path / "made.png"
        request = GenerateRequest(source=run.path, output=path, prompts=("a",), **SIZES, **options)
        (written,) = clip_files.generate(request)
        return np.asarray(Image.open(written.path)).ravel().tolist()

    averaged, raw = picture(), picture(raw_weights=True)
    without, more = picture(lora_scale=0.0), picture(lora_scale=2.0)
    assert averaged != raw
    assert without not in (averaged, raw, more)
    # Numbers of the trained LoRA are minus twice the averaged ones, and their product is four times that of these.
    assert picture(lora_scale=4.0) == raw
    assert picture(lora_scale=0.25, raw_weights=True) == averaged


def test_clips_of_a_file_of_prompts_differ_by_their_seeds_and_stay_if_they_are_there(
    run: RunFolder, tmp_path: Path
) -> None:
    """As when a command that was ended goes on: what a former one wrote is not made again."""
    prompts, folder = tmp_path / "prompts.txt", tmp_path / "clips"
    prompts.write_text("a\nb\n", encoding="utf-8")
    folder.mkdir()
    (folder / "a-1.mp4").write_bytes(b"of before")
    request = GenerateRequest(
        source=run.path, output=folder, prompt_file=prompts, samples=2, seed=5, num_frames=1, **SIZES
    )
    notes: list[str] = []
    written = clip_files.generate(request, notes.append)
    assert {clip.path.name: clip.options.seed for clip in written} == {"a-0.mp4": 5, "b-0.mp4": 5, "b-1.mp4": 6}
    assert notes == ["1 of 4 clips is there already"]
    assert (folder / "a-1.mp4").read_bytes() == b"of before"


def test_a_size_that_is_not_known_is_told(run: RunFolder, tmp_path: Path) -> None:
    """Without its plan, a run does not tell what it was trained at."""
    notes: dict[int, list[str]] = {}
    for given in range(3):
        size = {"num_inference_steps": 1} | dict([("height", 16), ("width", 24)][:given])
        request = GenerateRequest(source=run.path, output=tmp_path / "made.png", prompts=("a",), **size)
        clip_files.generate(request, notes.setdefault(given, []).append)
    told = "the run's plan/ is gone, and with it the size that was trained: give --height and --width"
    assert notes == {0: [told], 1: [told], 2: []}


def test_what_is_told_of_joined_clips_is_their_whole_length(run: RunFolder, tmp_path: Path) -> None:
    request = GenerateRequest(
        source=run.path, output=tmp_path / "a.mp4", prompts=("a",), num_frames=4, loop=2, condition_frames=1, **SIZES
    )
    (written,) = clip_files.generate(request)
    assert written.shape.num_frames == probe.probe(written.path).num_frames == 4 + 4 - 1
    assert "7 frames" in written.to_text()


def test_merged_weights_are_the_averaged_or_the_trained_ones(run: RunFolder, tmp_path: Path) -> None:
    base = build.denoiser(recipe_file.parse(RECIPE), torch.device("cpu")).module.state_dict()
    rank, name = RECIPE["lora"]["rank"], "final_layer.linear"
    for ema, value in ((True, AVERAGED), (False, TRAINED)):
        path = tmp_path / f"{ema}.safetensors"
        export_run.export(run.path, path, ema=ema, dtype="float32", merge=True)
        wanted = base[f"{name}.base_layer.weight"] + rank * value**2
        torch.testing.assert_close(load_file(path)[f"{name}.weight"], wanted)


def test_merged_weights_are_of_the_step_that_is_told_while_the_run_saves_on(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's header has the step, the recipe and the epoch of its weights."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.recipe_file.write_text(run.recipe_file.read_text(encoding="utf-8"), encoding="utf-8")
    save_step(folder, 2)
    describe = export_run.describe_run

    def save_meanwhile(**about: Any) -> dict[str, str]:
        save_step(folder, 4, averaged=3.0)
        return describe(**about)

    monkeypatch.setattr(export_run, "describe_run", save_meanwhile)
    done = export_run.export(folder.path, tmp_path / "out.safetensors", dtype="float32", merge=True)
    assert done.step == 2
    export_run.export(run.path, tmp_path / "alone.safetensors", dtype="float32", merge=True)
    found, wanted = (load_file(tmp_path / f"{name}.safetensors") for name in ("out", "alone"))
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


@pytest.mark.parametrize("there", ["out-transformer.safetensors", "out-transformer_2.safetensors"])
def test_an_export_of_two_experts_replaces_neither_of_their_files(tmp_path: Path, there: str) -> None:
    recipe = tiny_recipe.of_family("wan-2.2-tiny", tmp_path / "run", {"path": "unused"})
    recipe |= {"model": {"name": "wan-2.2-tiny", "experts": "both"}, "lora": {"rank": 2}}
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe_file.write_text(recipe_file.dump(recipe_file.parse(recipe)), encoding="utf-8")
    save.save(CheckpointFolder(run.checkpoints_folder), 2, {"model": {"w": torch.zeros(2)}})
    (tmp_path / there).write_bytes(b"of before")
    with refused("output-file-invalid", "target", says=there):
        export_run.export(run.path, tmp_path / "out.safetensors", ema=False)
    assert (tmp_path / there).read_bytes() == b"of before"


def test_a_given_sound_is_as_long_as_the_clip_at_its_own_rate(tmp_path: Path) -> None:
    """A clip that is shown at half the rate lasts, and sounds, twice as long."""
    recipe = recipe_file.parse(
        RECIPE
        | {"model": {"name": "ltx-2-sound-tiny"}, "lora": {"rank": 2}, "sound": {"sample_rate": 400}}
        | {"autoencoder": {"stride": 16}, "text_encoder": {"dim": 32, "max_length": 4, "pooled_dim": 0}}
        | {"data": {"fps": 24.0}, "bucket": [{"resolution": "32x32", "num_frames": 12}]}
    )
    path = tmp_path / "sound.mkv"
    sound_clips.write(path, seconds=2, events=[0.75], audio="pcm_s16le")
    for fps, seconds in ((24.0, 0.5), (12.0, 1.0)):
        samples = conditions.read_sound(path, recipe, 12, fps)
        assert len(samples) == pytest.approx(400 * seconds, abs=16)
        assert bool(samples.any()) == (seconds == 1.0)
