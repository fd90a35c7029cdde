"""What a run and `eval` say of weights that are not what they seem: adapters of training, weights that moved on the hub."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe

from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.inference.evaluate.held_out import EvaluatedModel, Evaluation
from reelworks.training.loop import resume
from reelworks.training.observers.validation import Validation
from reelworks.training.recipe import recipe_file

OLD, NEW = "owner/name@" + "a" * 40, "owner/name@" + "b" * 40


def recipe(**lora: Any) -> Any:
    values = tiny_recipe.least(bucket=[{"resolution": "64px", "num_frames": 1}], model={"name": "wan-tiny"}, lora=lora)
    return recipe_file.parse(values)


@pytest.mark.parametrize("adapter", [None, "turbo.safetensors"])
def test_eval_says_that_it_measures_without_the_training_adapter(adapter: str | None) -> None:
    """Validation in training is with it, so that the two losses are not compared."""
    made = recipe(training_adapter=adapter)
    source = EvaluatedModel(made, None, 0, "initial")
    said = Evaluation(source, [500.0], 2, "-", Validation(1.5, {"500": 1.5}, 2, {}, "a")).headline()
    assert ("without lora.training_adapter" in said) == made.has_training_adapter == (adapter is not None)


def test_each_measurement_of_a_checkpoint_has_a_file_of_its_own(tmp_path: Path) -> None:
    """By all that its loss depends on."""
    source, other = (EvaluatedModel(made, tmp_path, 20, "ema") for made in (recipe(), recipe()))
    seeded = other.recipe.model_copy(update={"seed": other.recipe.seed + 1})
    loss = Validation(1.5, {"500": 1.5}, 2, {}, "a")
    asked: list[tuple[EvaluatedModel, list[float], str]] = [
        (source, [500.0], "-"),
        (replace(source, recipe=seeded), [500.0], "-"),
        (replace(source, step=40), [500.0], "-"),
        (replace(source, weights="model"), [500.0], "-"),
        (source, [250.0], "-"),
        (source, [500.0], "of other clips"),
    ]
    files = [Evaluation(model, times, 2, clips, loss).file() for model, times, clips in asked]
    assert len({*files}) == len(asked)
    assert Evaluation(other, [500.0], 2, "-", loss).file() == files[0]


@pytest.mark.parametrize(("now", "warns"), [(OLD, False), (NEW, True), ("other/name@" + "b" * 40, False)])
def test_a_resume_tells_of_weights_that_moved_on_the_hub(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, now: str, warns: bool
) -> None:
    """The same repository at another commit than at the last start; the former can be written into the recipe."""
    folder = RunFolder(tmp_path)
    for sources in ({"model.weights": NEW}, {"model.weights": OLD}):
        EventLog(folder.events_file).write("start", step=0, resumed_from=None, sources=sources)
    with caplog.at_level(logging.WARNING, "reelworks"):
        resume.log_moved_sources(folder, {"model.weights": now, "autoencoder.weights": NEW})
    assert (OLD in caplog.text) == warns
    assert len(caplog.records) == int(warns), json.dumps(caplog.messages)


@pytest.mark.parametrize(
    ("key", "split", "is_lora", "says"),
    [
        ("seed", 0.1, True, "other clips are held out now"),
        ("seed", 0.0, True, ""),
        ("validation.group", 0.1, True, "other clips are held out now"),
        ("validation.split", 0.0, True, "other clips are held out now"),
        ("validation.timesteps", 0.1, True, ""),
        ("model.weights", 0.1, False, "model.weights has no effect"),
        ("model.weights", 0.1, True, ""),
    ],
)
def test_a_resume_tells_what_a_changed_key_changes_besides(key: str, split: float, is_lora: bool, says: str) -> None:
    """A LoRA goes on upon other weights of its base."""
    made = recipe()
    changed = {"validation": made.validation.model_copy(update={"split": split})} | ({} if is_lora else {"lora": None})
    made = made.model_copy(update=changed)
    told = [*resume.effects([key], made)]
    assert len(told) == bool(says)
    assert "".join(told).startswith(says)
