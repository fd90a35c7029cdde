"""Assignment and plan of an epoch, beside one stable argsort of as many integers in the same run.

`python -m benchmarks.schedule --clips 10000000 --json` prints as its last line what was seen. The catalog is
the synthetic one of `_weblike.py`, the buckets are those of Open-Sora v1.2's stage 1. `waste` is what ranks
wait within a step; `all_in` counts fillers, copies that pad and incomplete batches too (`padding` is its
largest value at 8 ranks). Both are measured on plans with `incomplete_batch = "pad"`, G = L = ranks, ordered
by the cost that they are measured in: batch size × tokens, or batch size × tokens². Counts and waste are
exact; seconds depend on what else the machine does (see `load_average`), ratios less so.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import wasted_time
from numpy.typing import NDArray

from benchmarks import _seek, _weblike
from benchmarks._results import AT_START, keep
from reelworks.core import machine, system
from reelworks.data.buckets import assign
from reelworks.data.buckets.assign import Clips, Reason
from reelworks.data.buckets.table import BucketTable
from reelworks.data.schedule import micro_batches
from reelworks.data.schedule.cursor import Excluded
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, plan_epoch

Json = dict[str, Any]
RANKS = (8, 64, 512)
# Measured of Open-Sora v1.2's bucket sampler, one process, on the same kind of machine.
UPSTREAM_US_PER_CLIP = 80
RESULTS = Path(__file__).parent / "results" / "schedule.json"


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that the work took, and what it gave."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def make_spec(table: BucketTable, ranks: int, costs: NDArray[np.int64]) -> PlanSpec:
    """A spec with G = L = ranks."""
    sizes = tuple(int(n) for n in table.batch_sizes())
    return PlanSpec(_seek.SEED, ranks, ranks, "pad", sizes, tuple(int(c) for c in costs), "stage 1")


def assign_and_plan(clips: Clips, table: BucketTable, spec: PlanSpec) -> tuple[EpochPlan, NDArray[np.int8]]:
    """What the benchmark times."""
    result = assign.assign(clips, table, seed=spec.seed, epoch=0)
    where = np.flatnonzero(result.reason == Reason.NONE)
    chosen = Samples(clips.uid[where], clips.copy[where], where, result.bucket[where].astype(np.int64))
    return plan_epoch(chosen, spec, 0), result.reason


def wastes(made: EpochPlan, table: BucketTable) -> Json:
    """Waste by cost and number of ranks: same step, and all in."""
    bucket, places = made.bucket[made.offsets[:-1]], np.diff(made.offsets)
    clips = np.add.reduceat(made.real, made.offsets[:-1], dtype=np.int64)
    result: Json = {"waste": {}, "all_in": {}}
    for name, power in (("linear", 1), ("quadratic", 2)):
        costs = table.tokens().astype(np.float64)[bucket] ** power
        for ranks in RANKS:
            steps = grouped(bucket, places * costs, ranks, epoch=0)
            found = wasted_time.measure(steps, clips, places, costs, ranks)
            result["waste"].setdefault(name, {})[str(ranks)] = found.same_step
            result["all_in"].setdefault(name, {})[str(ranks)] = found.in_all
    return result


def grouped(bucket: NDArray[np.int64], costs: Any, ranks: int, epoch: int) -> NDArray[np.int64]:
    """Steps of one slot for each rank."""
    return micro_batches.group_into_steps(
        bucket, costs, micro_batches_per_step=ranks, same_bucket_run=ranks, seed=_seek.SEED, epoch=epoch
    )


def positions(made: EpochPlan) -> Json:
    """Chi² test that buckets lie anywhere in the epoch, for two epochs, and how alike these two are."""
    bucket = made.bucket[made.offsets[:-1]]
    costs = np.diff(made.offsets)
    steps = [grouped(bucket, costs, 8, epoch) for epoch in (0, 1)]
    first = [bucket[r[:, 0]] for r in steps]
    return {
        "chi2_p": [chi_square_p(f) for f in first],
        "same_bucket_at_same_step_in_next_epoch": float(np.mean(first[0] == first[1])),
    }


def chi_square_p(bucket_of_step: NDArray[np.int64], parts: int = 8) -> float:
    """Chance of a table of bucket × eighth of the epoch as uneven as this one, were positions uniform.

    Buckets too rare to expect 5 steps in a part count as one. Wilson and Hilferty's normal approximation.
    """
    counts = np.bincount(bucket_of_step)
    group = np.cumsum(counts >= 5 * parts) * (counts >= 5 * parts)
    part = np.arange(len(bucket_of_step)) * parts // len(bucket_of_step)
    seen = np.zeros((int(group.max()) + 1, parts))
    np.add.at(seen, (group[bucket_of_step], part), 1)
    seen = seen[seen.sum(axis=1) > 0]
    if len(seen) < 2:
        return 1.0
    expected = seen.sum(axis=1, keepdims=True) * seen.sum(axis=0) / seen.sum()
    chi_square, free = float(((seen - expected) ** 2 / expected).sum()), (len(seen) - 1) * (parts - 1)
    spread = 2 / (9 * free)
    return math.erfc(((chi_square / free) ** (1 / 3) - (1 - spread)) / math.sqrt(2 * spread)) / 2


def seeks(clips: Clips, spec: PlanSpec) -> Json:
    """Seconds from saved states to the next step's uids, each in a fresh process and checked."""
    live = np.ones(len(clips.uid), dtype=np.bool_)
    made = _seek.segment(clips, live, spec, Excluded())
    begun = _seek.State(clips, live, spec, Excluded(), made, made.num_steps // 2)
    once = _seek.change(begun, spec=replace(spec, batch_sizes=tuple(2 * n for n in spec.batch_sizes)))
    twice = _seek.change(once, spec=replace(once.spec, micro_batches_per_step=64, same_bucket_run=64))
    edited, alive = _seek.edit(twice)
    thrice = _seek.change(twice, clips=edited, live=alive)
    states = {
        "first_step": (replace(begun, plan_step=0), None),
        "last_step": (replace(begun, plan_step=made.num_steps - 1), None),
        "at_a_change": (replace(once, plan_step=0), begun),
        "after_three_changes": (thrice, None),
    }
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (state, former) in states.items():
            _seek.save(state, Path(folder, name), former)
            found = _seek.run(Path(folder, name))
            if found["next"] != state.plan.step_digest(state.plan_step):
                raise AssertionError(f"{name}: another next step was found than the run would have trained")
            result[name] = found["seconds"]
    return result


def measure(n: int) -> Json:
    """Everything for `n` clips."""
    clips, table = _weblike.clips(n), _weblike.buckets()
    argsort_s, _ = timed(lambda: np.argsort(clips.uid, kind="stable"))
    spec = make_spec(table, 8, table.tokens())
    plan_s, (made, reason) = timed(lambda: assign_and_plan(clips, table, spec))
    peak = system.peak_bytes()
    named = int((reason != Reason.NONE).sum())
    result: Json = {
        "clips": n,
        "argsort_s": argsort_s,
        "plan_s": plan_s,
        "ratio": plan_s / argsort_s,
        "peak_rss_bytes": peak,
        "us_per_clip": plan_s / n * 1e6,
        **wastes(made, table),
        "lost_unnamed": n - named - made.planned,
        "rejected_with_reason": named,
        "positions": positions(made),
        "machine": machine_name(),
    }
    result["padding"] = max(result["all_in"][cost]["8"] for cost in result["all_in"])
    del made, reason
    result["seek"] = seeks(clips, spec)
    result |= AT_START
    result["seek_s"] = max(result["seek"].values())
    return result


def machine_name() -> str:
    """The machine's name, its processor and what runs on it."""
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [
            line.split(":")[1].strip() for line in info.read_text(encoding="utf-8").splitlines() if "model name" in line
        ]
        cpu = names[0] if names else cpu
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{platform.node()}, {machine.cores()} × {cpu}, {versions}"


def show(result: Json) -> None:
    """Print the figures for people."""
    print(f"{result['clips']:,} clips on {result['machine']}")
    print(
        f"assignment and plan {result['plan_s']:.2f} s = {result['ratio']:.2f} × one stable argsort "
        f"({result['argsort_s']:.2f} s); peak {result['peak_rss_bytes'] / 1e9:.2f} GB"
    )
    print(f"{result['us_per_clip']:.2f} µs per clip; Open-Sora v1.2's sampler: {UPSTREAM_US_PER_CLIP} µs")
    for kind in ("waste", "all_in"):
        for cost, by_ranks in result[kind].items():
            print(f"{kind} {cost}: " + ", ".join(f"{100 * w:.2f} % at {r}" for r, w in by_ranks.items()))
    print(f"rejected, each with its reason: {result['rejected_with_reason']:,}; lost: {result['lost_unnamed']}")
    print(f"positions: {result['positions']}")
    print("seek: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result["seek"].items()))


def main() -> None:
    """Parse, measure, print; keep the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    arguments = parser.parse_args()
    result = measure(arguments.clips)
    if not arguments.json:
        show(result)
    if arguments.save:
        keep(RESULTS, result, str(arguments.clips))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
