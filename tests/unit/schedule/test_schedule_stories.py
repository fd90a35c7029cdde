"""Histories that users of other trainers tell of, and that ended there in errors or lost clips."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from histories import Catalog, Config, Run, columns_of_all_ranks, identities

from reelworks.core import hash_rng
from reelworks.core.shape import Geometry
from reelworks.data.buckets import assign, table
from reelworks.data.buckets.assign import Clips, Reason
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.table import BucketTable
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, plan_epoch

GOLDEN = Path(__file__).parents[2] / "golden" / "buckets" / "bucket_random_counts.json"
ANY_SIZE = Geometry(stride=(1, 1, 1), patch=(1, 2, 2))
WAYS = ["partial", "pad", "merge", "repeat"]
SEVEN_SIZES = [(96, 96), (128, 72), (72, 128), (96, 128), (128, 96), (64, 150), (150, 64)]


def shapes(num_frames: list[int], sizes: list[tuple[int, int]]) -> Clips:
    """Clips of the given frames and (height, width)."""
    n = len(sizes)
    height, width = np.array(sizes, dtype=np.int64).T
    frames = np.array(num_frames, dtype=np.int64)
    return Clips(
        hash_rng.hash64("uid", np.arange(n)), np.zeros(n, np.int64), frames, height, width, frames == 1,
        np.zeros(n, np.int8), np.zeros(n, np.bool_),
    )  # fmt: skip


def planned(clips: Clips, built: BucketTable, way: str, *, epoch: int, g: int) -> tuple[EpochPlan, Counter[str]]:
    """An epoch's plan, and how many clips each reason keeps out of it."""
    result = assign.assign(clips, built, seed=1, epoch=epoch)
    into = np.flatnonzero(result.reason == Reason.NONE)
    entries = Samples(clips.uid[into], clips.copy[into], into, result.bucket[into].astype(np.int64))
    to = tuple(assign.targets(built).tolist()) if way == "merge" else ()
    sizes, tokens = (tuple(a.tolist()) for a in (built.batch_sizes(), built.tokens()))
    spec = PlanSpec(1, g, g, way, sizes, tokens, "table", merge_to=to)
    return plan_epoch(entries, spec, epoch), Counter(Reason(r).label for r in result.reason if r)


def trained_by_all(made: EpochPlan, world: int) -> Counter[int]:
    """How often the ranks train each clip in the epoch, together."""
    where = [m for step in made.steps for m in columns_of_all_ranks(step, world)]
    places = np.concatenate([np.r_[made.places(m)] for m in where])
    return Counter(made.uid[places[made.is_first_use[places]]].tolist())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.quick_cases(1)
def test_fine_tuning_on_a_twentieth_of_the_clips_after_100_000_steps(way: str) -> None:
    """Where a position is an index into the data, the smaller data end in an `IndexError`."""
    catalog, config = Catalog.of(38_000, 1), Config(incomplete=way, g=2, batch_sizes=(2, 2, 2))
    run = Run(catalog, config)
    while run.global_step + run.plan.num_steps < 100_000:
        run.plan_step = run.plan.num_steps  # counted, not lived through
        run.global_step += run.plan.num_steps
        run.begin_epoch(run.epoch + 1)
    assert run.global_step < 100_000
    while run.global_step < 100_000:
        run.step()
    fewer = catalog.without(catalog.uid[np.arange(38_000) % 20 != 7])
    plan_step, former = run.plan_step, set(run.account)
    run.resume(run.save(), fewer, config, world=8)
    alive = set(identities(config.entries(fewer, run.epoch)))
    assert len(alive) == 1900
    assert run.plan.planned == len(alive - former) > 0
    assert run.plan.num_steps < plan_step, "the checkpoint's step lies beyond the new plan"
    run.finish()
    run.check_end()
    run.next_epoch()
    run.finish()
    assert run.account.keys() == alive
    assert run.global_step <= 100_000 + (950 + 1900) // 4 + 50


@pytest.mark.parametrize("way", WAYS)
def test_batch_sizes_doubled_in_mid_epoch(way: str) -> None:
    """Where a position is a number of batches, 8,019 of 100,000 clips come twice and 38,591 never."""
    catalog = Catalog.of(20_000, 2)
    config = Config(incomplete=way, g=16, width=8, batch_sizes=(8, 4, 6))
    run = Run(catalog, config, world=8)
    for _ in range(run.plan.num_steps // 2):
        run.step()
    doubled = replace(config, batch_sizes=(16, 8, 12))
    run.resume(run.save(), catalog, doubled, world=8)
    run.finish()
    run.check_end()
    shown = [place for step in run.batches for micro_batch in step for place in micro_batch]
    seen = Counter((uid, copy) for uid, copy, repeat_index in shown if repeat_index == 0)
    assert set(seen.values()) == {1}
    assert seen.keys() == set(identities(doubled.entries(catalog, 0)))
    assert len(seen) == 20_000


@pytest.mark.parametrize("world", [1, 3, 8])
@pytest.mark.parametrize("way", WAYS)
def test_twenty_pictures_of_seven_aspect_ratios_at_batch_size_4(way: str, world: int) -> None:
    """Where incomplete batches are dropped, an epoch has no step."""
    ratios = ["1:1", "16:9", "9:16", "4:3", "3:4", "21:9", "9:21"]
    config = BucketsConfig(incomplete_batch=way, aspect_ratios=ratios, max_crop=0.6)
    two = [BucketEntryConfig(resolution=r, num_frames=1, batch_size=4) for r in ("80px", "48px")]
    built = table.build(two, config, Geometry(stride=(1, 8, 8), patch=(1, 2, 2)))
    clips = shapes([1] * 20, [SEVEN_SIZES[i % 7] for i in range(20)])
    for epoch in range(4):
        made, lost = planned(clips, built, way, epoch=epoch, g=world)
        assert made.num_steps > 0
        assert not lost
        assert trained_by_all(made, world) == Counter(clips.uid.tolist())


def web_like(n: int) -> Clips:
    """Short sides from 144 to 1080, six aspect ratios, a fifth pictures, lengths with a long tail."""
    rng = np.random.default_rng(0)
    short = rng.choice([144, 240, 360, 480, 720, 1080], n, p=[0.05, 0.1, 0.25, 0.2, 0.25, 0.15])
    ratio = rng.choice([9 / 16, 3 / 4, 9 / 21, 16 / 9, 4 / 3, 1], n, p=[0.55, 0.1, 0.03, 0.17, 0.03, 0.12])
    height = np.where(ratio < 1, short, short * ratio).round().astype(int)
    width = np.where(ratio < 1, short / ratio, short).round().astype(int)
    frames = np.clip(rng.lognormal(np.log(150), 1.2, n), 2, 2000).astype(int)
    frames[rng.random(n) < 0.2] = 1
    return shapes(frames.tolist(), list(zip(height.tolist(), width.tolist(), strict=True)))


@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_clips_in_the_buckets_of_1_2_are_trained_or_named(way: str) -> None:
    """Where incomplete batches are dropped, most of so few clips fill no batch of these buckets."""
    stage_1 = json.loads(GOLDEN.read_text(encoding="utf-8"))["bucket_configs"]["stage1"]
    config = {
        "opensora": stage_1,
        "probability": "opensora-1.2",
        "opensora_drop_exact_length": True,
        "incomplete_batch": way,
    }
    built = table.build([], BucketsConfig.model_validate(config), ANY_SIZE)
    clips = web_like(1000)
    for epoch in range(3):
        made, lost = planned(clips, built, way, epoch=epoch, g=8)
        trained = trained_by_all(made, 8)
        assert set(trained.values()) == {1}
        assert len(trained) + lost.total() == 1000
        assert lost.keys() <= {"too_short", "too_small", "not_drawn", "no_bucket"}
        assert len(trained) > 500
