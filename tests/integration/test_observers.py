"""Observers that a program adds: what they are told in a whole training, and that they change nothing of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refused import refused

import reelworks as rw
from reelworks.core import named_code
from reelworks.core.errors import UserError
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.models import factory
from reelworks.training.observers import observer
from reelworks.training.observers.observer import Pause, StepObserver, TrainedStep, Training
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

CALLS: list[tuple[Any, ...]] = []


class Diary(StepObserver):
    """Note all calls, and measure the number of clips so far for checkpoints."""

    def __init__(self, training: Training) -> None:
        self.training, self.clips = training, 0
        CALLS.append(("prepared", training.data.recipe.train.max_steps))

    def make_up(self, now: Pause) -> None:
        CALLS.append(("make_up", now.step))

    def begin(self, now: Pause) -> None:
        CALLS.append(("begin", now.step, now.is_new, now.is_over()))

    def before_step(self, step: int) -> None:
        CALLS.append(("before", step))

    def after_step(self, step: TrainedStep) -> None:
        self.clips += step.result.clips
        CALLS.append(("after", step.number))

    def metrics(self, now: Pause) -> dict[str, float]:
        return {"diary/clips": float(self.clips)}

    def after_save(self, now: Pause) -> None:
        CALLS.append(("saved", now.step, now.is_saved))

    def end(self, now: Pause) -> None:
        CALLS.append(("end", now.step))


class _Kind:
    def require(self, recipe: Recipe) -> None:
        if recipe.seed == 13:
            raise UserError("it brings no luck", code="no-luck", field="seed", value=13, remedy="choose another")

    def prepare(self, data: RecipeData) -> Callable[[Training], StepObserver] | None:
        return Diary


KIND = _Kind()


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    monkeypatch.setattr(observer, "_KINDS", dict(observer._KINDS))
    observer.register("diary", f"{Path(__file__)}:KIND")
    # The file is run as a module of its own.
    calls = named_code.load(f"{Path(__file__)}:CALLS")
    calls.clear()
    return calls


def weights(run: Path) -> dict[str, str]:
    files = sorted((run / "checkpoints").glob("step-*/**/*.safetensors"))
    return {file.relative_to(run).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
def test_an_observer_from_outside_sees_a_training_and_its_resume_and_changes_nothing(
    tiny: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    steps = {"checkpoints": {"every_steps": 2, "keep_last": 9}, "validation": {"split": 0.0}}
    rw.train(recipe_file.parse(tiny("alone", train={"max_steps": 5}, **steps)))
    calls = request.getfixturevalue("diary")
    rw.train(recipe_file.parse(tiny("seen", train={"max_steps": 3}, **steps)))
    assert calls == [
        ("prepared", 3),
        ("begin", 0, True, False),
        ("before", 1),
        ("after", 1),
        ("saved", 1, False),
        ("before", 2),
        ("after", 2),
        ("saved", 2, True),
        ("before", 3),
        ("after", 3),
        ("saved", 3, True),
        ("end", 3),
    ]
    info = CheckpointFolder(tmp_path / "seen" / "checkpoints").info(3)
    assert info.metrics["diary/clips"] > 0
    calls.clear()
    rw.train(recipe_file.parse(tiny("seen", train={"max_steps": 5}, **steps)))
    assert calls[:3] == [("prepared", 5), ("make_up", 3), ("begin", 3, False, False)]
    assert calls[-2:] == [("saved", 5, True), ("end", 5)]
    alone, seen = weights(tmp_path / "alone"), weights(tmp_path / "seen")
    assert alone
    assert {name: seen[name] for name in alone} == alone


def test_what_it_refuses_is_told_before_a_model_is_built(
    tiny: Any, diary: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(factory, "build_denoiser")
    with refused("no-luck", "seed"):
        rw.train(recipe_file.parse(tiny("unlucky", seed=13)))
