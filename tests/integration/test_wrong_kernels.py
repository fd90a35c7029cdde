"""A kernel of attention with wrong gradients never trains a step: it is told and replaced, or refused; a slow one is replaced."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe
import torch
from planted_attention import Arguments, Results, exact, planted
from refused import refused

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.models.attention import attention_audit, attention_calls
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.preflight import kernels
from reelworks.training.recipe import recipe_file


def garbage(a: Arguments) -> Results:
    """Return gradients of 1e31 to NaN where the gradient of the output is part of wider rows."""
    found = exact(a)
    if a.gradient is None or a.gradient.stride(-2) == a.gradient.shape[-1] * a.gradient.shape[1]:
        return found
    return (found[0] * 1e31, found[1] * math.nan, found[2])


def slow(a: Arguments) -> Results:
    time.sleep(0.01)
    return exact(a)


@pytest.fixture
def start(footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Train FLUX on the CPU as if it had to be checked, and return the run."""
    monkeypatch.setattr(kernels, "_TRUSTED", set[str]())
    monkeypatch.setattr(kernels, "_TIMED", {"cpu"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def train(name: str, steps: int = 2) -> RunFolder:
        values = tiny_recipe.of_family(
            "flux-tiny", tmp_path / name, {"path": str(footage)}, train={"max_steps": steps, "max_epochs": 9}
        )
        assert trainer.run(recipe_file.parse(values | {"precision": {"compute": "bfloat16"}}), TrainRequest()) == 0
        return RunFolder(tmp_path / name)

    return train


def losses(run: RunFolder) -> list[float]:
    return [event["loss"] for event in events.timeline(run.events_file, "step")]


def test_a_wrong_kernel_is_told_once_and_replaced_in_the_whole_run(
    start: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with planted(garbage):
        run = start("wrong")
        (told,) = events.read(run.events_file, "attention")
        assert "the math kernel, which is right, takes its place" in told["replaced"][0]
        assert "not finite" in told["replaced"][0]
        # The next start knows it, and does not compare again.
        monkeypatch.setattr(attention_audit, "audit", None)
        capsys.readouterr()
        start("wrong", steps=3)
        assert len(losses(run)) == 3
        assert all(map(math.isfinite, losses(run)))
        assert capsys.readouterr().out.count("takes its place") == len(told["replaced"])
    monkeypatch.undo()
    assert losses(start("right", steps=3)) == pytest.approx(losses(run), rel=0.02)


@pytest.mark.slow
def test_without_any_right_kernel_nothing_is_trained(
    start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attention_audit, "_right_kernels", lambda *given, times: iter(()))
    with planted(garbage), refused("attention-is-wrong", "model.attention", says="no other kernel is right"):
        start("none")
    assert not RunFolder(tmp_path / "none").checkpoints_folder.exists()


@pytest.mark.slow
def test_a_quicker_kernel_is_found_at_the_first_start_and_takes_the_place_of_a_slow_one_in_each(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    audit = attention_audit.audit
    monkeypatch.setattr(
        attention_audit, "audit", lambda *given, times: compared.append(1) or audit(*given, times=times)
    )
    with planted(slow):
        runs = [start("first"), start("second")]
    assert len(compared) == 1
    for run in runs:
        (told,) = events.read(run.events_file, "attention")
        (line,) = told["replaced"]
        assert "the math kernel takes the place of flash, which torch chooses, for" in line
    assert losses(runs[0]) == losses(runs[1])
    assert torch.nn.functional.scaled_dot_product_attention is attention_calls.ATTEND
