"""Four processes whose forward passes sleep as the plan's costs say wait for one another as planned."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
import pytest

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.reports import run_data, run_facts

SECONDS_PER_TOKEN = 0.015
SLOW_RANK, FACTOR = 2, 1.6


def train_asleep(recipe: dict[str, Any], slow_factor: float) -> None:
    """Train with forward passes that sleep until as much time is over as their tokens cost, in one rank more."""
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file
    from reelworks.training.step.losses import PlainLoss
    from reelworks.training.step.train_step import TrainStep

    factor = slow_factor if os.environ["RANK"] == str(SLOW_RANK) else 1.0

    @dataclass(frozen=True)
    class Asleep(PlainLoss):
        buckets: Any

        def of_clips(self, example: Any, at_least: int) -> Any:
            began = time.perf_counter()
            result = super().of_clips(example, at_least)
            request = example.batch.request
            planned = SECONDS_PER_TOKEN * self.buckets[request.bucket].tokens * len(request.uids)
            time.sleep(max(factor * planned - (time.perf_counter() - began), 0.0))
            return result

    plain = TrainStep.loss.func
    TrainStep.loss = property(lambda self: Asleep(plain(self).passes, self.table.buckets))
    os._exit(run(recipe_file.parse(recipe), TrainRequest()))


@pytest.mark.slow
@pytest.mark.parametrize("slow_factor", [1.0, FACTOR])
def test_measured_waiting_is_the_planned_and_a_slow_rank_is_named(tiny: Any, slow_factor: float) -> None:
    train = {"max_steps": 14, "micro_batches_per_step": 4, "same_bucket_run": 1, "log_balance_every": 14}
    others = {"validation": {"split": 0.0, "every_steps": "none"}, "buckets": {"aspect_ratios": ["1:1"]}}
    recipe = tiny(train=train, parallel={"strategy": "replicated"}, **others)
    assert children.on_ranks(train_asleep, recipe, slow_factor, world=4) == [0] * 4, children.output(recipe)
    run = RunFolder(Path(recipe["output"]))
    found = list(events.read(run.events_file, "balance"))
    assert len(found) == 1
    assert found[0]["planned"] > 0.1, "or nothing would be compared"
    named = [one["rank"] for one in found[0]["stragglers"]]
    if slow_factor == 1.0:
        assert found[0]["measured"] == pytest.approx(found[0]["planned"], abs=0.02)
        # A busy machine may slow a rank a little, too.
        assert all(one["factor"] < 1.4 for one in found[0]["stragglers"])
    else:
        assert named == [SLOW_RANK]
        assert found[0]["stragglers"][0]["factor"] == pytest.approx(FACTOR, rel=0.1)
        assert f"rank {SLOW_RANK} on" in children.output(recipe)
        shown = run_facts.balance_of_ranks(run_data.load(run))
        assert shown is not None
        assert [one.rank for one in shown.stragglers] == [SLOW_RANK]
