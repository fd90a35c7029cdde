"""Random histories of a run: edits, kills, rollbacks, failures, any number of ranks. Every clip once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from consumed_places import places_before
from histories import NONE_FAIL, Catalog, Config, Run, Saved
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

QUICK = settings(
    max_examples=settings().max_examples * 6 // 10,
    stateful_step_count=25,
    # The same histories in every run: a rare one would take minutes to shrink. `make test-all` plays more.
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

seeds = st.integers(0, 99)
worlds = st.integers(1, 64)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    g = draw(st.integers(1, 64))
    return Config(
        seed=draw(st.integers(0, 3)),
        g=g,
        width=draw(st.sampled_from([w for w in range(1, g + 1) if g % w == 0])),
        incomplete=draw(st.sampled_from(["partial", "pad", "merge", "repeat"])),
        batch_sizes=tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))),
        shapes=draw(st.sampled_from([12, 12, 9, 5])),
        showings=draw(st.sampled_from([1, 2, 3, 0.4, 1.7])),
        window_clips=draw(st.sampled_from([0, 0, 1, 30, 1000])),
    )


class Histories(RuleBasedStateMachine):
    """The catalog changes at any time; a process sees it, and a new recipe, when it starts again."""

    most_clips = 300

    @initialize(clips=st.floats(0, 1), seed=seeds, config=configs(), world=worlds)
    def start(self, clips: float, seed: int, config: Config, world: int) -> None:
        self.catalog = Catalog.of(round(clips * self.most_clips), seed)
        self.begun = (self.catalog, config)
        self.run = Run(self.catalog, config, world)
        self.saved: list[Saved] = [self.run.save()]
        self.added = 0

    @rule(steps=st.integers(1, 12), fails=st.integers(NONE_FAIL, 6), skip=st.booleans())
    def train(self, steps: int, fails: int, skip: bool) -> None:
        for i in range(steps):
            if not self.run.at_end:
                self.run.step(fails, skipped=skip and i == 0)

    @rule()
    def save(self) -> None:
        self.saved.append(self.run.save())

    @rule(back=st.integers(0, 3), world=worlds)
    def stop(self, back: int, world: int) -> None:
        self._resume(back, self.run.config, world)

    @rule(back=st.integers(0, 3), config=configs(), world=worlds)
    def change_recipe(self, back: int, config: Config, world: int) -> None:
        self._resume(back, config, world)

    @rule(back=st.integers(0, 2), times=st.sampled_from([2, 3]))
    def enlarge_batches(self, back: int, times: int) -> None:
        sizes = tuple(min(times * size, 50) for size in self.run.config.batch_sizes)
        self._resume(back, replace(self.run.config, batch_sizes=sizes), self.run.world)

    def _resume(self, back: int, config: Config, world: int) -> None:
        """Stop: with a save at the step's edge, or killed, to go on from the `back`th last checkpoint."""
        if back == 0:
            self.saved.append(self.run.save())
        else:
            del self.saved[max(len(self.saved) - back + 1, 1) :]
        self.run.resume(self.saved[-1], self.catalog, config, world)

    @rule(count=st.integers(1, 20), seed=seeds)
    def add(self, count: int, seed: int) -> None:
        self.added += 1
        new = Catalog.of(count, 1000 + self.added).uid
        self.catalog = self.catalog.with_rows(new, seed)

    @rule(one_in=st.integers(1, 9), seed=seeds)
    def edit(self, one_in: int, seed: int) -> None:
        """Another content under the same name: a new row of the same clip, perhaps of another shape."""
        self.catalog = self.catalog.with_rows(self._some(one_in, seed), seed)

    @rule(one_in=st.integers(1, 9), seed=seeds)
    def remove(self, one_in: int, seed: int) -> None:
        self.catalog = self.catalog.without(self._some(one_in, seed))

    @rule(seed=seeds)
    def put_back(self, seed: int) -> None:
        self.catalog = self.catalog.with_rows(self.catalog.gone(), seed)

    def _some(self, one_in: int, seed: int) -> NDArray[np.uint64]:
        live = self.catalog.uid[self.catalog.live]
        return live[(live >> np.uint64(8)) % np.uint64(one_in) == seed % one_in]

    @precondition(lambda self: self.run.at_end)
    @rule()
    def go_on_to_the_next_epoch(self) -> None:
        self.run.check_end()
        self.run.next_epoch()
        self.saved.append(self.run.save())

    @rule()
    def finish(self) -> None:
        self.run.finish()
        self.run.check_end()

    @invariant()
    def nothing_is_counted_that_was_not_planned(self) -> None:
        left = self.run.plan.planned - int(places_before(self.run.plan, self.run.plan_step).sum())
        assert self.run.planned == len(self.run.account) + left

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.saved.append(self.run.save())
            self.run.resume(self.saved[-1], self.catalog, self.run.config)
            self.run.finish()
            self.run.check_end()
            self.check_the_uninterrupted_run()

    def check_the_uninterrupted_run(self) -> None:
        """One process, one rank, no failure and no kill: the same changes give the same batches."""
        other = Run(*self.begun)
        other.repeat(self.run.events)
        assert other.batches == self.run.batches
        assert other.account.keys() == self.run.account.keys()


class LargeHistories(Histories):
    most_clips = 5000


TestHistories = Histories.TestCase
TestHistories.settings = QUICK
TestLargeHistories = pytest.mark.slow(LargeHistories.TestCase)
TestLargeHistories.settings = settings(QUICK, max_examples=50, stateful_step_count=50, derandomize=False)
