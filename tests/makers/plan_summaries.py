"""Summaries of plans that were never made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reelworks.training.plan.compiled_graphs import PlannedGraphs
from reelworks.training.plan.discarded import Crop, Losses, VideoFrames
from reelworks.training.plan.plan_report import CatalogCounts, PlannedBucket, PlanSummary
from reelworks.training.plan.rejections import LeftOut, LeftOutClip


def bucket(
    clips: int, num_frames: int, height: int, width: int, *, tokens: int = 1, name: str = "", batch_size: int = 2
) -> PlannedBucket:
    """Return a bucket with so many clips."""
    return PlannedBucket(
        name=name,
        num_frames=num_frames,
        height=height,
        width=width,
        batch_size=batch_size,
        sequence_degree=1,
        global_batch=batch_size,
        keep_prob=1.0,
        clips=clips,
        micro_batches=-(-clips // batch_size),
        incomplete=clips % batch_size,
        tokens_per_clip=tokens,
    )


def summary(
    *buckets: PlannedBucket, reasons: dict[str, Sequence[tuple[str, str]]] | None = None, **changes: Any
) -> PlanSummary:
    """Return the summary of an epoch with these buckets, clips left out by reason (path and detail), and changes."""
    named = {name: [LeftOutClip(*clip) for clip in clips] for name, clips in (reasons or {}).items()}
    values = {
        "catalog": CatalogCounts(clips=0, videos=0, images=0, bad=0),
        "planned": 0,
        "repeated": 0,
        "held_out": 0,
        "left_out": {name: LeftOut(len(clips), {}) for name, clips in named.items()},
        "buckets": list(buckets),
        "empty_buckets": [],
        "steps_per_epoch": 1,
        "micro_batches": sum(one.micro_batches for one in buckets),
        "incomplete_batch": "partial",
        "incomplete": sum(one.incomplete for one in buckets),
        "micro_batches_per_step": 2,
        "same_bucket_run": 2,
        "world": 1,
        "imbalance": 0.0,
        "padding": 0.0,
        "steps_not_full": 0,
        "recomputation": {},
        "reasons": named,
        "exclude_list_unmatched": [],
        "mirrored_sides": [],
        "without_effect": [],
        "other_measurements": [],
        "uneven_clips": 0,
        "fps": None,
        "shared_files": [],
        "graphs": PlannedGraphs(False, 0, 0, [], 0, 1, None),
        "chosen_buckets": None,
        "losses": Losses(Crop(0.0, [], []), VideoFrames(0, 0, [], 0, []), short_clips=0, below_rate=0),
    }
    return PlanSummary(**values | changes)
