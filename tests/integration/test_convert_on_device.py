"""Training whose device converts planes to RGB trains on the same frames up to rounding, and resumes to the last bit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pytest

from reelworks.run import events
from reelworks.run.folder import RunFolder

Recipe = dict[str, Any]
DEVICE = {"convert_on": "device", "clip_start": "start"}


def losses(recipe: Recipe) -> list[float]:
    """Return the losses of a run's steps and validations."""
    file = RunFolder(Path(recipe["output"])).events_file
    return [event["loss"] for kind in ("step", "validation") for event in events.timeline(file, kind)]


def trained(recipe: Recipe) -> list[float]:
    assert children.train(recipe) == [0], children.output(recipe)
    return losses(recipe)


@pytest.mark.slow
def test_a_run_that_was_killed_has_the_losses_of_one_that_reads_a_store(tiny: Callable[..., Recipe]) -> None:
    """So frames are the same after a resume, and those that were encoded ahead of training."""
    short: Recipe = {"data": DEVICE, "train": {"max_steps": 4}, "checkpoints": {"every_steps": 1}}
    stored = trained(tiny("stored", encode={"store": True}, **short))
    killed = tiny("killed", **short)
    assert children.train(killed, fault=("before the optimizer steps", 3)) == [-signal.SIGKILL]
    assert 0 < len(losses(killed)) < len(stored)
    assert trained(killed) == stored


@pytest.mark.slow
def test_losses_are_nearly_those_of_the_decoder(tiny: Callable[..., Recipe]) -> None:
    device = trained(tiny("device", data=DEVICE))
    decoder = trained(tiny("decoder", data={**DEVICE, "convert_on": "cpu"}))
    assert device != decoder
    assert device == pytest.approx(decoder, rel=1e-3)
    assert trained(tiny("workers", data={**DEVICE, "num_workers": 1})) == device
