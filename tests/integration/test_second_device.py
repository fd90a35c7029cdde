"""Whole trainings on a pretended second device, where whatever mixes its tensors with those of the CPU is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import second_device
import torch

from reelworks.recipe import recipe_file
from reelworks.run import events
from reelworks.run.folder import RunFolder
from reelworks.train import trainer
from reelworks.train.request import TrainRequest


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return second_device.use(monkeypatch)


def trained(recipe: dict[str, Any]) -> list[float]:
    """Train, and return the losses of all steps and validations."""
    assert trainer.run(recipe_file.parse(recipe), TrainRequest()) == 0
    file = RunFolder(Path(recipe["output"])).events_file
    return [event["loss"] for kind in ("step", "validation") for event in events.timeline(file, kind)]


CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "offload": {"parallel": {"offload": True}},
    "average on the CPU": {"train": {"ema_device": "cpu"}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_training(tiny: Callable[..., dict[str, Any]], name: str) -> None:
    assert trained(tiny(**CHANGES[name]))
