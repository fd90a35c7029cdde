"""Pairs of clips, from files to a trained model: each clip is learnt with its reference before it, live and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import tiny_recipe
import torch
from examples import training_example
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.data.loader import prefetch
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import writers
from reelworks.training.assembly import build
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData

CLIPS, SIZE = 4, {"num_frames": 5, "height": 32, "width": 32}


def grey(path: Path, first: int) -> None:
    """Write a clip that becomes lighter by 10 with each frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = np.empty((9, 32, 32, 3), np.uint8)
    frames[:] = (first + 10 * np.arange(9))[:, None, None, None]
    writers.write_video(path, frames, 24.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips and their references, which are darker by 40; the last clip has none."""
    root = tmp_path_factory.mktemp("pairs")
    for i in range(CLIPS):
        grey(root / f"after/{i}.mp4", 80 + 20 * i)
        (root / f"after/{i}.txt").write_text(f"clip {i}", encoding="utf-8")
        if i < CLIPS - 1:
            grey(root / f"before/{i}.mp4", 40 + 20 * i)
    return root


@pytest.fixture
def recipe(folder: Path, tmp_path: Path) -> Any:
    def make(name: str, **changes: Any) -> dict[str, Any]:
        pairs = {"path": f"{folder}/after", "source": f"{folder}/before", "min_sources": 0}
        tables = {"lora": {"rank": 2}, "objective": {"mask_ratios": {"image_head": 0.5}}}
        tables |= {"model": {"gradient_checkpointing": True}}
        entry = [{"resolution": "32x32", "num_frames": 5, "batch_size": 2}]
        return tiny_recipe.of_family("ltx-tiny", tmp_path / name, pairs, bucket=entry, **tables) | changes

    return make


def test_a_reference_shows_the_same_frames_as_its_clip(recipe: Any) -> None:
    """Wherever in a clip training begins, the frames of its reference are those of the same times."""
    parsed = recipe_file.parse(recipe("run"))
    dataset.scan_recipe(parsed)
    data, encoder = RecipeData.open(parsed), build.encoder(parsed, torch.device("cpu"))
    plan, counts = data.plan(data.plan_spec(1, 1), 0), [0, 0]
    pool = DecodePool(0, 60.0)
    try:
        work = [
            each
            for plan_step in range(plan.num_steps)
            for each in StepSource(data, 0, 1).requests_of_step(plan, 0, plan_step)
        ]
        for batch in prefetch.read_ahead(work, pool):
            example = training_example(batch, encoder, parsed.objective, seed=1)
            counts[len(example.inputs.sources)] += len(batch.captions)
            for source in example.inputs.sources:
                darker = (batch.frames.int() - 40).to(torch.uint8)
                torch.testing.assert_close(source, encoder.latents(darker), atol=0.06, rtol=0)
    finally:
        pool.close()
    assert counts == [1, CLIPS - 1]


@pytest.mark.slow  # two trainings and two generations: some 15 s
def test_pairs_are_trained_live_and_from_the_store_alike_and_clips_are_made_from_a_reference(
    recipe: Any, folder: Path, tmp_path: Path
) -> None:
    """With given frames, checkpointed blocks and a preview from a clip; another reference makes another clip."""
    before = [f"{folder}/before/0.mp4", f"{folder}/before/2.mp4"]
    samples = SIZE | {"prompts": ["a"], "num_inference_steps": 2, "source": before[0]}
    losses = []
    data = {"num_workers": 0, "clip_start": "start"}  # what is stored has fewer beginnings than a live run draws
    for values in (recipe("live", data=data, samples=samples), recipe("stored", data=data, encode={"store": True})):
        assert children.train(values) == [0], children.output(values)
        steps = list(events.read(RunFolder(Path(values["output"])).events_file, "step"))
        losses.append([(step["loss"], step["grad_norm"]) for step in steps])
    assert losses[0] == losses[1]
    assert len(list((tmp_path / "live/samples").rglob("*.mp4"))) == 1
    command = ["generate", str(tmp_path / "live"), "--prompt", "a", "--num-inference-steps", "2"]
    command += [part for key, value in SIZE.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    made = set()
    for i, options in enumerate((["--source", before[0]], ["--source", before[1]])):
        out = tmp_path / f"made-{i}.mp4"
        done = CliRunner().invoke(app, [*command, "-o", str(out), *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        made.add(out.read_bytes())
    assert len(made) == 2


def test_a_second_reference_is_refused(recipe: Any, folder: Path) -> None:
    two = {"path": f"{folder}/after", "source": [f"{folder}/before"] * 2}
    with refused("companion-mismatch", "dataset.source", says="ltx-tiny takes 1 source of a clip"):
        recipe_file.parse(recipe("run", dataset=[two]))


@pytest.mark.slow  # many sizes are estimated: some 10 s
def test_a_new_recipe_for_pairs_has_the_reference(folder: Path, tmp_path: Path) -> None:
    written = tmp_path / "pairs.toml"
    command = ["new", "lora", "--model", "ltx-tiny", "--data", f"{folder}/after", "--source", f"{folder}/before"]
    done = CliRunner().invoke(app, [*command, "-o", str(written)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    made = recipe_file.load(written)
    assert [d.source for d in made.dataset] == [f"{folder}/before"]
    assert any(max(b.num_frames) > 1 for b in made.bucket)
