"""Plans of a catalog like the web's at 8, 96 and 512 GPUs, beside simpler ways to choose batch sizes and degrees.

`python -m benchmarks.strategies --json` prints as its last line, by network and number of ranks:

- `strategies`: one batch size for all buckets ("fixed"), equal tokens, and the plan with degrees by bucket ("planned"). Each
  has `imbalance` (share of the time in which ranks wait), `tokens_per_second` (of all ranks) and `peak_memory_share`
  (activations of the largest micro-batch over what a GPU has for them; above 1 it would not fit).
- `fixed_degree`: the plan with degree 1 for all buckets, and with degree 8 for all.
- `speedup_over_fixed_degree`: tokens in the same time, planned over each of these two.

The first two have no bucket in common within a step. All others are the best of several bounds on time, the plan also
of several sizes of sequence groups, degree 1 for all among them: where that fits, the plan cannot be slower. A group of all
ranks waits for nobody.

Nothing here is measured on GPUs. Times are those of `MODELS`: arithmetic at a published speed, exchanges as in
`reelworks.data.buckets.degrees`, the part of weights' exchange that arithmetic does not hide. `sleeps` compares planned imbalance with that
of eight real processes that sleep in place of training, and meet after every micro-batch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _seek, _weblike
from benchmarks._results import keep
from reelworks.data.buckets import assign, degrees
from reelworks.data.buckets.assign import Reason
from reelworks.data.buckets.degrees import Degree, Exchange, RankLimits, at_degree
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.data.schedule import cost_fit
from reelworks.data.schedule.cost_fit import CostModel, Timing
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, plan_epoch
from reelworks.training.plan import epoch_stats, strategies
from reelworks.training.plan.epoch_stats import Figures

Json = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "strategies.json"
RANKS = (8, 96, 512)
LARGEST = 8
GROUPS = (1, 2, 4, LARGEST)
# Bounds on time, in units of the longest clip's time on one GPU.
BOUNDS = (1.0, 0.5, 0.25, 0.125, 0.0625)
# Assumed: an H100 of 80 GB, a network of 400 Gbit/s for each, four fifths of weights' exchange hidden by arithmetic.
MEMORY_BYTES, NETWORK_BYTES_PER_SECOND, NOT_HIDDEN = 0.92 * 80e9, 50e9, 0.2
STATE_BYTES = 16  # of a parameter: float32 weight, gradient, two moments; sharded over all ranks


def stdit3_flops(bucket: Bucket) -> float:
    """Operations of a forward pass of STDiT3-XL: 56 blocks of width 1152, half of them within frames, half across."""
    width, blocks, text = 1152, 56, 300
    frames = -(-bucket.shape.num_frames // 4)
    attended = (bucket.tokens / frames + frames) / 2 + text
    return bucket.tokens * blocks * (28 * width**2 + 4 * width * attended)


def wan_flops(bucket: Bucket) -> float:
    """Operations of a forward pass of Wan 14B: 40 blocks of width 5120, each with attention among all tokens."""
    width, ffn, blocks, text = 5120, 13_824, 40, 512
    return bucket.tokens * blocks * (12 * width**2 + 4 * width * ffn + 4 * width * (bucket.tokens + text))


@dataclass(frozen=True)
class Network:
    """A network, and where its times come from.

    Attributes:
        flops_per_second: Three forward passes' operations in a second of training on one GPU.
        exchange: Exchanges among ranks that share clips.
        blocks: Blocks whose inputs gradient checkpointing keeps.
    """

    parameters: float
    blocks: int
    flops: Callable[[Bucket], float]
    flops_per_second: float
    source: str
    exchange: Exchange
    heads: int

    def model(self, table: BucketTable) -> CostModel:
        """Return the time of a micro-batch on one GPU."""
        ms = {b.tokens: 3000 * self.flops(b) / self.flops_per_second for b in table.buckets}
        fitted = cost_fit.fit([Timing(tokens, 1, each) for tokens, each in ms.items()])
        # Weights are gathered forward and backward, gradients reduced, in two bytes each.
        exchanged = 3 * 2 * self.parameters / NETWORK_BYTES_PER_SECOND
        return replace(fitted, per_batch=fitted.per_batch + 1000 * NOT_HIDDEN * exchanged)

    def limits(self, ranks: int) -> RankLimits:
        """Return the memory for activations; a block's are 34 bytes per element (Korthikanti et al., 2022)."""
        per_token = self.exchange.width * (2 * self.blocks + 34)
        return RankLimits(MEMORY_BYTES - STATE_BYTES * self.parameters / ranks, per_token)


def networks(table: BucketTable) -> dict[str, Network]:
    """Return the networks of the benchmark."""
    used = [bucket for bucket in table.buckets if bucket.batch_size]
    mean = float(np.mean([3 * stdit3_flops(b) * b.batch_size for b in used]))
    return {
        "stdit3-xl": Network(
            1.1e9,
            56,
            stdit3_flops,
            mean / 12,
            "published: 12 s for a micro-batch of each entry of Open-Sora v1.2's stage 1 (a comment there, GPU not said, "
            "encoding included)",
            Exchange(width=1152, attentions=28, forwards=2),
            heads=16,
        ),
        "wan-14b": Network(
            14.3e9,
            40,
            wan_flops,
            325.77e12,
            "published: 325.77 TFLOP/s on each of 128 H100 at 37,440 tokens (Megatron-Bridge); by FLOPs elsewhere",
            Exchange(width=5120, attentions=40, forwards=2),
            heads=40,
        ),
    }


@dataclass(frozen=True)
class Planned:
    """A plan with the choices that it was made from."""

    choices: Sequence[Degree]
    spec: PlanSpec
    plan: EpochPlan
    figures: Figures
    group: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens that all ranks train in a second."""
        return 1e6 * self.figures.tokens / self.figures.spent_us


@dataclass(frozen=True)
class Case:
    """A network on so many ranks, with the clips of an epoch."""

    network: Network
    ranks: int
    table: BucketTable
    entries: Samples

    @property
    def used(self) -> NDArray[np.int64]:
        """Buckets that have clips."""
        return np.unique(self.entries.bucket)

    def planned(self, choices: Sequence[Degree], group: int, *, shares_bucket: bool = True) -> Planned:
        """Plan an epoch whose columns are run by groups of ranks, with as many micro-batches as the degree leaves room for."""
        columns = self.ranks // group
        sizes = tuple(c.batch_size * group // c.degree for c in choices)
        costs = tuple(max(round(1e6 * c.seconds / size), 1) for c, size in zip(choices, sizes, strict=True))
        spec = PlanSpec(_seek.SEED, columns, columns if shares_bucket else 1, "pad", sizes, costs, "strategies")
        plan = plan_epoch(self.entries, spec, 0)
        return Planned(choices, spec, plan, epoch_stats.figures(plan, spec, self.table.tokens(), columns), group)

    def simple(self) -> dict[str, Planned]:
        """Plan with a fixed batch size and with equal tokens, each clip on a GPU of its own."""
        model, limits, tokens = self.network.model(self.table), self.network.limits(self.ranks), self.table.tokens()
        none = PlanSpec(_seek.SEED, self.ranks, 1, "pad", (1,) * len(tokens), (1,) * len(tokens), "strategies")
        budget = int(limits.activation_bytes / limits.bytes_per_token)
        found = {}
        for name, spec in strategies.simple(none, self.entries, tokens, budget).items():
            choices = [
                at_degree(int(n), 1, model, self.network.exchange, limits, min(size, limits.clips))
                for n, size in zip(tokens, spec.batch_sizes, strict=True)
            ]
            found[name] = self.planned(choices, 1, shares_bucket=False)
        return found

    def best(self, groups: Sequence[int], degree: int | None = None) -> Planned:
        """Return the fastest plan of some sizes of groups and bounds on time, all buckets with `degree` if given."""
        model, limits, tokens = self.network.model(self.table), self.network.limits(self.ranks), self.table.tokens()
        longest = model.milliseconds(int(tokens[self.used].max()), 1) / 1000
        exchange, plans = self.network.exchange, []
        for bound in BOUNDS:
            within = replace(limits, step_seconds=bound * longest)
            for group in groups:
                if degree is None:
                    able = [d for d in GROUPS if group % d == 0 and self.network.heads % d == 0]
                    choices = [degrees.choose(n, able, model, exchange, within) for n in tokens.tolist()]
                else:
                    choices = [at_degree(int(n), degree, model, exchange, within) for n in tokens]
                plans.append(self.planned(choices, group))
        # What fits comes first.
        return max(plans, key=lambda p: (all(p.choices[b].fits for b in self.used), p.tokens_per_second))

    def told(self, planned: Planned) -> Json:
        """Return the figures of a plan."""
        memory = self.network.limits(self.ranks).activation_bytes
        chosen = [planned.choices[b] for b in self.used]
        return {
            "imbalance": planned.figures.imbalance,
            "tokens_per_second": planned.tokens_per_second,
            "peak_memory_share": max(c.activation_bytes for c in chosen) / memory,
            "group": planned.group,
            "degrees": sorted({c.degree for c in chosen}),
            "steps": planned.plan.num_steps,
        }


def measure(clips: int, ranks: Sequence[int] = RANKS, sleep_seconds: float = 0.0) -> Json:
    """Return all figures; with seconds, also of as long a run of sleeping processes for each plan of `sleeps`."""
    table = _weblike.buckets()
    made = _weblike.clips(clips)
    result = assign.assign(made, table, seed=_seek.SEED, epoch=0)
    where = np.flatnonzero(result.reason == Reason.NONE)
    entries = Samples(made.uid[where], made.copy[where], where, result.bucket[where].astype(np.int64))
    found: Json = {"clips": clips, "networks": {}}
    for name, network in networks(table).items():
        by_ranks = {str(world): compare(Case(network, world, table, entries)) for world in ranks}
        found["networks"][name] = {"times": network.source, "ranks": by_ranks}
    if sleep_seconds:
        case = Case(networks(table)["wan-14b"], 8, table, entries)
        plans = {**case.simple(), "degree_1": case.best([1], 1)}
        found["sleeps"] = {name: sleeps(plan, sleep_seconds) for name, plan in plans.items()}
    return found


def compare(case: Case) -> Json:
    """Return the figures of all strategies for one network and number of ranks."""
    planned = case.best(GROUPS)
    fixed = {str(degree): case.best([degree], degree) for degree in (1, LARGEST)}
    return {
        "strategies": {name: case.told(each) for name, each in (case.simple() | {"planned": planned}).items()},
        "fixed_degree": {degree: case.told(each) for degree, each in fixed.items()},
        "speedup_over_fixed_degree": {
            degree: planned.tokens_per_second / each.tokens_per_second for degree, each in fixed.items()
        },
    }


def sleeps(planned: Planned, seconds: float, columns: int = 20) -> Json:
    """Compare planned and measured imbalance of steps spread over a plan, run by a process for each of its columns."""
    steps = planned.plan.steps[(planned.plan.steps >= 0).all(axis=1)]
    steps = steps[np.linspace(0, len(steps) - 1, min(columns, len(steps))).astype(np.int64)]
    costs = planned.plan.costs_us(planned.spec)[steps].astype(np.float64)
    costs *= seconds / costs.max(axis=1).sum()
    measured = waited_share(costs)
    expected = float(1 - costs.mean(axis=1).sum() / costs.max(axis=1).sum())
    return {"planned": expected, "measured": measured, "processes": costs.shape[1], "steps": len(costs)}


def waited_share(seconds: NDArray[np.float64]) -> float:
    """Return the share of their time that processes wait for each other; `seconds[step, process]` are their sleeps."""
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_sleep_and_meet, (seconds, folder), nprocs=seconds.shape[1])  # type: ignore[no-untyped-call]
        times = [
            json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(seconds.shape[1])
        ]
    return sum(waited for waited, _ in times) / sum(whole for _, whole in times)


def _sleep_and_meet(rank: int, seconds: NDArray[np.float64], folder: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=seconds.shape[1])
    dist.barrier()
    waited, began = 0.0, time.perf_counter()
    for own in seconds[:, rank]:
        time.sleep(own)
        arrived = time.perf_counter()
        dist.barrier()
        waited += time.perf_counter() - arrived
    Path(folder, f"{rank}.json").write_text(json.dumps([waited, time.perf_counter() - began]), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def show(found: Json) -> None:
    """Print the figures for people."""
    for name, network in found["networks"].items():
        print(f"{name}: {network['times']}")
        for ranks, each in network["ranks"].items():
            all_plans = each["strategies"] | {f"degree {d}": told for d, told in each["fixed_degree"].items()}
            for strategy, told in all_plans.items():
                print(
                    f"  {ranks:>4} ranks {strategy:12} waits {told['imbalance']:6.1%}, {told['tokens_per_second']:12,.0f} "
                    f"tokens/s, memory {told['peak_memory_share']:4.0%}, degrees {told['degrees']}"
                )
    for name, each in found.get("sleeps", {}).items():
        print(f"sleeping processes, {name}: planned {each['planned']:.1%}, measured {each['measured']:.1%}")


def main() -> None:
    """Parse, measure, print; keep the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument(
        "--sleep-seconds", type=float, default=20.0, help="of each run of sleeping processes; 0 for none"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    args = parser.parse_args()
    found = measure(args.clips, sleep_seconds=args.sleep_seconds)
    if not args.json:
        show(found)
    if args.save:
        keep(RESULTS, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
