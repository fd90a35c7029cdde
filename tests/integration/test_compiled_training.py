"""Training with compiled blocks is training without them: equal losses, gradients and names, on one process and two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import children
import diffusers
import numpy as np
import pytest
import tiny_families
import torch
from PIL import Image

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import trainer
from reelworks.training.recipe import recipe_file

# All blocks of this network are of one kind, so that few graphs are traced.
MODEL = {"name": "stdit2-tiny", "gradient_checkpointing": True}
TRAIN = {"max_steps": 4, "micro_batches_per_step": 2, "same_bucket_run": 2}
FAMILIES = {
    "upscale": True,
    "max_crop": 0.7,
    "token_families": True,
    "token_family_crop": 0.4,
    "incomplete_batch": "pad",
}


def told(run: Path, kind: str, field: str) -> list[Any]:
    return [event[field] for event in events.timeline(RunFolder(run).events_file, kind)]


def assert_same_training(run: Path, other: Path) -> None:
    for kind, field in (("step", "loss"), ("step", "grad_norm"), ("validation", "loss")):
        assert told(run, kind, field) == pytest.approx(told(other, kind, field), rel=1e-5), field


def recipe(tiny: Any, output: str, *, world: int = 1, **train: Any) -> dict[str, Any]:
    made: dict[str, Any] = tiny(output, train=TRAIN | train, buckets=FAMILIES, lora={"rank": 2})
    del made["model"], made["buckets"]["aspect_ratios"]
    return made | {"model": MODEL, "parallel": {"strategy": "fsdp" if world > 1 else "replicated"}}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_two_sharded_ranks_with_lora_and_checkpointing_train_as_eager_ones_do(tiny, tmp_path, backend):
    clips = [{"resolution": "32px", "num_frames": 5, "batch_size": 2}]
    assert children.train(recipe(tiny, "eager", world=2) | {"bucket": clips}, world=2) == [0] * 2
    compiled = recipe(tiny, "compiled", world=2, compile=True, compile_backend=backend) | {"bucket": clips}
    assert children.train(compiled, world=2) == [0] * 2, children.output(compiled)
    assert_same_training(tmp_path / "compiled", tmp_path / "eager")
    assert told(tmp_path / "eager", "compiled", "graphs") == []
    # One graph for a block whose input needs no gradients, and one for the others.
    assert told(tmp_path / "compiled", "compiled", "graphs") == [2]
    assert all(seconds > 0 for seconds in told(tmp_path / "compiled", "compiled", "seconds"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # of torch, when it is imported
def test_inductor_trains_as_eager_blocks_do(tiny, tmp_path):
    """All weights train, one bucket has no graph left, and a resumed run compiles again.

    It runs in this process, since compiling may take longer than other tests wait for a child.
    """
    made: dict[str, Any] = {}
    torch._dynamo.utils.counters.clear()  # what other tests of this process compiled
    for output, train in (("eager", {}), ("compiled", {"compile": True, "compile_graphs": 1})):
        made = recipe(tiny, output, **train)
        del made["lora"]
        assert trainer.train(recipe_file.parse(made)) == 0
    assert_same_training(tmp_path / "compiled", tmp_path / "eager")
    assert told(tmp_path / "compiled", "compiled", "graphs") == [1]
    made["train"]["max_steps"] = 6
    assert trainer.train(recipe_file.parse(made)) == 0
    assert told(tmp_path / "compiled", "step", "step")[-1] == 6


@pytest.mark.slow
def test_wherever_a_run_is_interrupted_it_goes_on_with_the_same_graphs(tiny, tmp_path):
    """Captions of two lengths, of which one has a graph."""
    footage = tmp_path / "pictures"
    footage.mkdir()
    for i in range(6):
        Image.fromarray(np.full((32, 32, 3), 40 * i, np.uint8)).save(footage / f"{i}.png")
        (footage / f"{i}.txt").write_text("word " * (3 if i % 2 else 40), encoding="utf-8")
    train = {"compile": True, "compile_graphs": 1, "compile_backend": "eager", "micro_batches_per_step": 1}
    made = {
        "dataset": [{"path": str(footage)}],
        "bucket": [{"resolution": "32px", "num_frames": 1, "batch_size": 1}],
        "model": {"name": "z-image-tiny"},
        "text_encoder": {"dim": 32, "max_length": 64},
        "validation": {"split": 0.0},
        "checkpoints": {"every_steps": 1, "keep_last": 9},
    }
    steps: dict[str, list[int]] = {}
    for output, ends in (("whole", [6]), ("parts", [1, 2, 3, 4, 5, 6])):
        for end in ends:
            own = {"max_steps": end, "same_bucket_run": 1}
            assert trainer.train(recipe_file.parse(tiny(output, train=train | own) | made)) == 0
        files = sorted((tmp_path / output / "checkpoints").glob("step-*/compiled_shapes.json"))
        steps[output] = [json.loads(file.read_text(encoding="utf-8"))["ranks"] for file in files]
    assert len(steps["whole"]) == 6
    assert steps["whole"] == steps["parts"]


def test_a_checkpoint_has_the_shapes_of_the_autoencoder_too(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    diffusers.AutoencoderKL(**tiny_families.AUTOENCODERS["flux"]).save_pretrained(tmp_path / "vae")
    made = tiny("run", train={"max_steps": 1, "compile": True}, validation={"split": 0.0}) | {
        "bucket": [{"resolution": "32px", "num_frames": 1, "batch_size": 2}],
        "autoencoder": {"name": "flux", "weights": str(tmp_path)},
    }
    assert trainer.train(recipe_file.parse(made)) == 0
    (file,) = (tmp_path / "run" / "checkpoints").glob("step-*/compiled_shapes.json")
    ((_, of_encoder),) = json.loads(file.read_text(encoding="utf-8"))["ranks"]
    assert of_encoder == [[2, 3, 32, 48]]
