"""Buckets recompute what their memory asks for, and train the same numbers on any card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.models import recompute
from reelworks.training.loop import start, trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.memory import memory, recomputation
from reelworks.training.memory.measurements import Measurements, bucket_table
from reelworks.training.memory.recomputation import Cards
from reelworks.training.recipe import recipe_file

DEEP = {"name": "stdit3-tiny", "hidden_size": 32, "depth": 4, "num_heads": 2}
AUTO = {**DEEP, "gradient_checkpointing": "auto"}


def trained(recipe: dict[str, Any], steps: int) -> list[float]:
    """Train until a step, and return the losses of all steps."""
    made = recipe_file.parse(recipe | {"train": {**recipe["train"], "max_steps": steps}})
    assert trainer.run(made, TrainRequest()) == 0
    return [event["loss"] for event in events.timeline(RunFolder(Path(recipe["output"])).events_file, "step")]


def between(recipe: dict[str, Any]) -> int:
    """Return memory in which the largest entry needs some recomputation, and the smallest none."""
    made, measured = recipe_file.parse(recipe), Measurements()
    buckets = memory.largest_of_entries(bucket_table(made))
    fixed = memory.without_activations(made, measured.sizes(made))
    need = [[recomputation._need(made, bucket, way, fixed, measured) for bucket in buckets] for way in (False, True)]
    low, high = max(need[0][0], need[1][1]), need[0][1]
    assert low < high
    return (low + high) // 2


@pytest.mark.slow
def test_a_run_trains_the_same_with_less_memory_at_another_start(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ways: list[list[Any]] = [[]]
    of_bucket = recompute.by
    monkeypatch.setattr(recompute, "by", lambda way: ways[-1].append(way) or of_bucket(way))
    expected = trained(tiny("plain", model=DEEP), 4)
    assert set(ways[0]) <= {False}

    recipe = tiny("cards", model=AUTO)
    limit = between(recipe)
    monkeypatch.setattr(start, "_cards", lambda *_: Cards(limit))
    ways.append([])
    trained(recipe, 2)
    kept = RunFolder(Path(recipe["output"])).recipe_file
    chosen = recipe_file.load(kept).buckets.gradient_checkpointing
    assert chosen["32px ×1"] is False
    assert chosen["32px ×5"] is not False
    assert set(ways[1][-2:]) <= set(chosen.values())
    said = capsys.readouterr().out
    assert "recomputed in backward passes" in said
    assert "less memory" not in said

    # The same run on a smaller card: more is recomputed, and what was planned stays.
    monkeypatch.setattr(start, "_cards", lambda *_: Cards(1))
    ways.append([])
    assert trained(recipe, 4) == expected
    assert ways[2][-2:] == [True, True]  # of the steps; what came before measured each way
    assert "more than was planned of 32px ×" in capsys.readouterr().out
    assert recipe_file.load(kept).buckets.gradient_checkpointing == chosen
