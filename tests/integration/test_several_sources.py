"""Clips with different numbers of sources, from folders to a trained model, live and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import torch
from PIL import Image
from refused import refused
from typer.testing import CliRunner

from reelworks.catalog.config import DatasetConfig
from reelworks.cli.main import app
from reelworks.data import prefetch
from reelworks.data.loader import StepSource
from reelworks.encoders import stored_batches
from reelworks.media.decode_pool import DecodePool
from reelworks.models.config import ModelConfig
from reelworks.recipe import dataset, recipe_file, validation
from reelworks.recipe.dataset import RecipeData
from reelworks.run import events
from reelworks.run.folder import RunFolder
from reelworks.train import build, encoding
from reelworks.train.batch_inputs import training_example

CLIPS, SECOND = 8, 5  # of the clips, the first ones have a second source


def grey(path: Path, value: int, size: tuple[int, int] = (32, 48)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Edits of one or two pictures, and pictures of no source; the shade of a file is its number.

    The second picture of an edit has another aspect ratio, that of the first edit another one still.
    """
    root = tmp_path_factory.mktemp("edits")
    for i in range(CLIPS):
        grey(root / f"after/{i}.png", 10 * i)
        (root / f"after/{i}.txt").write_text(f"edit {i}")
        grey(root / f"person/{i}.png", 100 + 10 * i)
        if i < SECOND:
            grey(root / f"coat/{i}.jpg", 200 + 10 * i, (48, 32) if i else (64, 64))
        grey(root / f"plain/{i}.png", 5 * i)
        (root / f"plain/{i}.txt").write_text(f"picture {i}")
    return root


@pytest.fixture
def recipe(folder: Path, tmp_path: Path) -> Any:
    def make(name: str, **changes: Any) -> dict[str, Any]:
        edits = {"path": f"{folder}/after", "source": [f"{folder}/person", f"{folder}/coat"], "min_sources": 1}
        return {
            "version": 1,
            "output": str(tmp_path / name),
            "dataset": [edits, {"path": f"{folder}/plain"}],
            "bucket": [{"resolution": "32x48", "num_frames": 1, "batch_size": 2}],
            "data": {"num_workers": 0},
            "model": {"name": "flux2-tiny"},
            "autoencoder": {"stride": 4},
            "text_encoder": {"dim": 16, "max_length": 6},
            "precision": {"compute": "float32"},
            "train": {"max_epochs": 1, "threads": 1},
            "validation": {"split": 0.2, "every_steps": 5, "timesteps": [500.0]},
        } | changes  # fmt: skip

    return make


def test_a_micro_batch_has_one_layout_of_sources_and_every_clip_is_trained(recipe: Any) -> None:
    """Each clip's latents are those of its own sources, in the order of the folders, in about the area of the clip.

    So they are if they are to come from a store that has none of them yet.
    """
    parsed = recipe_file.parse(recipe("run", validation={"split": 0.0}))
    dataset.scan_recipe(parsed)
    data, encoder = RecipeData.open(parsed), build.encoder(parsed, torch.device("cpu"))
    plan, counts = data.plan(data.plan_spec(1, 1), 0), dict[int, int]()
    assert plan.planned == 2 * CLIPS
    pool = DecodePool(0, 60.0)
    try:
        work = [each for row in range(plan.steps) for each in StepSource(data, 0, 1).row(plan, 0, row)]
        unstored = stored_batches.read_ahead(work, pool, 1 << 30, encoding.open_store(data))
        for batch, missing in zip(prefetch.read_ahead(work, pool), unstored, strict=True):
            made = training_example(batch, encoder, parsed.objective, seed=1).inputs.sources
            again = training_example(missing, encoder, parsed.objective, seed=1).inputs.sources
            assert all(torch.equal(a, b) for a, b in zip(made, again, strict=True))
            counts[len(made)] = counts.get(len(made), 0) + len(batch.captions)
            for i, caption in enumerate(batch.captions):
                number = int(caption.split()[1])
                sizes = ((32, 48), (48, 32) if number else (40, 40))
                for first, size, source in zip((100, 200), sizes, made, strict=False):
                    shade = torch.full((1, 1, *size, 3), first + 10 * number, dtype=torch.uint8)
                    torch.testing.assert_close(source[i : i + 1], encoder.latents(shade), atol=0.03, rtol=0)
    finally:
        pool.close()
    assert counts == {0: CLIPS, 1: CLIPS - SECOND, 2: SECOND}


def test_trainings_live_and_from_the_store_are_the_same(recipe: Any, folder: Path, tmp_path: Path) -> None:
    """Losses, gradients and validations; previews and pictures are made from two sources, whose order counts."""

    def losses(values: dict[str, Any]) -> list[tuple[float, float]]:
        assert children.train(values) == [0], children.output(values)
        file = RunFolder(Path(values["output"])).events_file
        steps = [(e["loss"], e["grad_norm"]) for e in events.read(file, "step")]
        return steps + [(e["loss"], 0.0) for e in events.read(file, "validation")]

    pair = [f"{folder}/person/1.png", f"{folder}/coat/1.jpg"]
    samples = {"prompts": ["a"], "num_frames": 1, "height": 32, "width": 48, "num_inference_steps": 2, "source": pair}
    live = losses(recipe("live", samples=samples))
    assert losses(recipe("stored", encode={"store": True})) == live
    assert list((tmp_path / "live/samples").rglob("*.png"))
    made = []
    for sources in ([], pair, pair[::-1]):
        output = tmp_path / "made.png"
        command = ["generate", str(tmp_path / "live"), "--prompt", "a", "-o", str(output), "--num-inference-steps", "2"]
        options = [option for source in sources for option in ("--source", source)]
        done = CliRunner().invoke(app, [*command, *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        made.append(output.read_bytes())
    assert len(set(made)) == 3


def test_numbers_of_sources_that_cannot_be_are_refused(recipe: Any) -> None:
    with refused("too-many-sources", "dataset.source", says="4 sources, and there are 5"):
        recipe_file.parse(recipe("run", dataset=[{"path": "x", "source": list("abcde")}]))
    with refused("too-few-sources", "dataset.min_sources", says="names 1"):
        recipe_file.parse(recipe("run", dataset=[{"path": "x", "source": "a", "min_sources": 2}]))
    edits = [DatasetConfig(path="x", source=["a"], min_sources=0)]
    with refused("companion-mismatch", "dataset.min_sources", says="needs a source for each clip"):
        validation.require_least_sources(ModelConfig(name="qwen-image-edit"), edits)
    validation.require_least_sources(ModelConfig(name="flux2-dev"), edits)
