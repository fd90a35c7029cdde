"""A run that trains by counting: what its steps took, what its checkpoints hold, how it goes on after changes.

It goes by the schedule as training does, from bytes where training reads bytes. Beside it stands the same
by brute force: what is consumed is a set of (uid, copy), and what remains is all that is not in it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from consumed_places import places_before
from numpy.typing import NDArray

from reelworks.core import digests, hash_rng
from reelworks.core.hash_rng import Purpose
from reelworks.data.schedule.cursor import Cursor, Excluded, check_same, remaining_after
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, columns, plan_epoch

Place = tuple[int, int]
Batch = tuple[tuple[tuple[int, int, int], ...], ...]  # (uid, copy, showing) by micro-batch

TRAINED, FAILED, SKIPPED = "trained", "failed", "skipped"
NONE_FAIL = -1


@dataclass(frozen=True)
class Catalog:
    """Rows by ordinal, retired ones too: uid, shape, whether the row holds."""

    uid: NDArray[np.uint64]
    shape: NDArray[np.int64]
    live: NDArray[np.bool_]

    @classmethod
    def of(cls, clips: int, seed: int) -> Catalog:
        empty = cls(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        return empty.with_rows(hash_rng.hash64("clip", seed, np.arange(clips)), seed)

    def with_rows(self, uid: NDArray[np.uint64], seed: int) -> Catalog:
        """New rows of clips; rows of the same clips no longer hold."""
        live = self.live & ~np.isin(self.uid, uid)
        shape = hash_rng.below(hash_rng.hash64(seed, uid, len(self.uid)), 12)
        return Catalog(
            np.concatenate([self.uid, uid]),
            np.concatenate([self.shape, shape]),
            np.concatenate([live, np.ones(len(uid), np.bool_)]),
        )

    def without(self, uid: NDArray[np.uint64]) -> Catalog:
        return replace(self, live=self.live & ~np.isin(self.uid, uid))

    def gone(self) -> NDArray[np.uint64]:
        """Clips that were there once."""
        return np.setdiff1d(self.uid, self.uid[self.live])

    def digest(self) -> str:
        return digests.digest_arrays(ordinal=np.flatnonzero(self.live), uid=self.uid[self.live])


@dataclass(frozen=True)
class Config:
    """What a recipe says.

    Attributes:
        shapes: The clips' shapes beyond these have no bucket.
        showings: How often an epoch shows each clip, on average.
        window_clips: About how many clips are shuffled together; 0 shuffles all.
    """

    seed: int = 0
    g: int = 4
    width: int = 2
    incomplete: str = "partial"
    batch_sizes: tuple[int, ...] = (3, 2, 4)
    shapes: int = 12
    showings: float = 1
    window_clips: int = 0

    def spec(self) -> PlanSpec:
        n = len(self.batch_sizes)
        costs = tuple(100 * (i * 7 % 5 + 1) for i in range(n))
        table = digests.digest_json([n, self.shapes, self.showings])
        to = (*range(1, n), -1) if self.incomplete == "merge" else ()
        return PlanSpec(
            self.seed, self.g, self.width, self.incomplete, self.batch_sizes, costs, table, to,
            self.window_clips,
        )  # fmt: skip

    def entries(self, catalog: Catalog, epoch: int) -> Samples:
        """Clips of folders of forty, shown as often as the recipe says: the last copy only if it is drawn."""
        copies = math.ceil(self.showings)
        ordinal = np.flatnonzero(catalog.live & (catalog.shape < self.shapes)).repeat(copies)
        copy = np.tile(np.arange(copies), len(ordinal) // copies)
        uid, bucket = catalog.uid[ordinal], catalog.shape[ordinal] % len(self.batch_sizes)
        drawn = hash_rng.bernoulli(hash_rng.hash64(self.seed, epoch, uid, copy, Purpose.SHARE), self.showings - copy)
        return Samples(uid, copy, ordinal, bucket, hash_rng.hash64(uid % np.uint64(40))).take(drawn)


Change = tuple[Catalog, Config]


def identities(entries: Samples | EpochPlan) -> list[Place]:
    return list(zip(entries.uid.tolist(), entries.copy.tolist(), strict=True))


def batch(made: EpochPlan, micro_batches: list[int]) -> Batch:
    """Clips of micro-batches with their showings, without the copies that pad."""
    where = [np.flatnonzero(made.real[made.places(m)]) + made.places(m).start for m in micro_batches]
    arrays = (made.uid, made.copy, made.repeat_index)
    return tuple(tuple(zip(*(array[w].tolist() for array in arrays), strict=True)) for w in where)


def columns_of_all_ranks(step: NDArray[np.int64], world: int) -> list[int]:
    """What the ranks train together, in the step's order, without fillers; checks that ranks keep pace."""
    by_rank = [list(columns(step, rank, world)) for rank in range(world)]
    assert len({len(columns) for columns in by_rank}) == 1, "ranks would wait for each other for ever"
    turns = zip(*by_rank, strict=True)
    return [micro_batch for turn in turns for micro_batch, is_filler in turn if not is_filler]


@dataclass(frozen=True)
class Saved:
    """A checkpoint: bytes, and how far the account went."""

    cursor: str
    excluded: bytes
    account: dict[Place, str]
    steps: int
    events: int


@dataclass
class Run:
    """A run in an epoch, with `catalog` as it was when the process started.

    `account` is the epoch's; `batches` are those of all steps that hold; `events` are changes of the data
    and, as None, new epochs, by the steps before them.
    """

    catalog: Catalog
    config: Config
    world: int = 1
    epoch: int = 0
    segment: int = 0
    plan_step: int = 0
    global_step: int = 0
    planned: int = 0
    repeated: int = 0
    excluded: Excluded = field(default_factory=Excluded)
    account: dict[Place, str] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    events: list[tuple[int, Change | None]] = field(default_factory=list)
    plans: dict[tuple[int, int], EpochPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin_epoch(self.epoch)

    def next_epoch(self) -> None:
        self.events.append((len(self.batches), None))
        self.begin_epoch(self.epoch + 1)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.segment, self.plan_step, self.repeated = epoch, 0, 0, 0
        self.excluded, self.account = Excluded(), {}
        self.plan = plan_epoch(self.config.entries(self.catalog, epoch), self.config.spec(), epoch)
        self.planned = self.plan.planned
        self.plans[epoch, 0] = self.plan

    @property
    def at_end(self) -> bool:
        return self.plan_step >= self.plan.num_steps

    def step(self, fails: int = NONE_FAIL, skipped: bool = False) -> None:
        """Train a step on all ranks; the clips of a seventh fail where `fails` names it."""
        step = self.plan.steps[self.plan_step]
        taken = batch(self.plan, columns_of_all_ranks(step, self.world))
        assert taken == batch(self.plan, self.plan.micro_batches(self.plan_step).tolist()), "ranks differ from the step"
        for *clip, repeat_index in (place for micro_batch in taken for place in micro_batch):
            place = (clip[0], clip[1])
            if repeat_index:
                self.repeated += 1
                continue
            assert place not in self.account, "a clip is trained twice in an epoch"
            self.account[place] = FAILED if place[0] % 7 == fails else SKIPPED if skipped else TRAINED
        self.batches.append(taken)
        self.plan_step, self.global_step = self.plan_step + 1, self.global_step + 1

    def finish(self) -> None:
        while not self.at_end:
            self.step()

    def save(self) -> Saved:
        became = Counter(self.account.values())
        cursor = Cursor(
            self.catalog.digest(), 1, self.config.spec().digest(), self.plan.digest(),
            self.plan.step_digest(self.plan_step), 0, self.epoch, self.segment, self.plan_step, self.global_step,
            self.planned, became[TRAINED], became[FAILED], became[SKIPPED], self.repeated,
        )  # fmt: skip
        text = json.dumps(asdict(cursor))
        return Saved(text, self.excluded.to_bytes(), dict(self.account), len(self.batches), len(self.events))

    def resume(self, saved: Saved, catalog: Catalog, config: Config, world: int = 1) -> None:
        """Go on from a checkpoint with what the catalog and the recipe are now."""
        cursor = Cursor(**json.loads(saved.cursor))
        excluded, spec = Excluded.from_bytes(saved.excluded), config.spec()
        self.catalog, self.config, self.world = catalog, config, world
        self.account = dict(saved.account)
        del self.batches[saved.steps :], self.events[saved.events :]
        self.epoch, self.segment, self.plan_step = cursor.epoch, cursor.segment, cursor.plan_step
        self.global_step, self.planned, self.repeated = cursor.global_step, cursor.planned, cursor.repeated
        if (cursor.catalog, cursor.spec) == (catalog.digest(), spec.digest()):
            self.plan, self.excluded = self._rest(excluded), excluded
            check_same(cursor, self.plan)
            return
        former = self.plans[cursor.epoch, cursor.segment]
        assert former.digest() == cursor.plan
        done = places_before(former, cursor.plan_step)
        self.excluded = excluded.with_places(former.ordinal[done], former.copy[done])
        self.plan, self.segment, self.plan_step = self._rest(self.excluded), cursor.segment + 1, 0
        self.planned = cursor.trained + cursor.failed + cursor.skipped + self.plan.planned
        self.plans[self.epoch, self.segment] = self.plan
        self.events.append((len(self.batches), (catalog, config)))
        self._check_rest()

    def _rest(self, excluded: Excluded) -> EpochPlan:
        left = remaining_after(self.config.entries(self.catalog, self.epoch), excluded, self.catalog.uid)
        return plan_epoch(left, self.config.spec(), self.epoch)

    def _check_rest(self) -> None:
        """The segment is the plan of what the account does not know, whatever failed or was skipped."""
        entries = self.config.entries(self.catalog, self.epoch)
        left = [i for i, place in enumerate(identities(entries)) if place not in self.account]
        by_force = plan_epoch(entries.take(np.array(left, dtype=np.int64)), self.config.spec(), self.epoch)
        assert by_force.digest() == self.plan.digest(), "the segment is not what remains of the epoch"

    def repeat(self, events: list[tuple[int, Change | None]]) -> None:
        """Live through another run's events, without its kills, failures and skipped steps."""
        for steps, change in events:
            while len(self.batches) < steps:
                self.step()
            if change is None:
                self.check_end()
                self.next_epoch()
            else:
                self.resume(self.save(), *change)
        self.finish()

    def check_end(self) -> None:
        """Each (uid, copy) alive is in the account, and the account adds up."""
        assert self.at_end
        alive = set(identities(self.config.entries(self.catalog, self.epoch)))
        assert alive <= self.account.keys(), "a clip was never trained"
        assert self.planned == len(self.account), "planned = trained + failed + skipped"
