"""Digest the settings that determine the plan of an epoch, besides its clips: another digest is another plan."""

from __future__ import annotations

from typing import Any

from reelworks.core import digests
from reelworks.data.buckets import assign
from reelworks.data.buckets.table import BucketTable
from reelworks.data.catalog.config import SHOWING, DatasetConfig
from reelworks.data.catalog.sources import SOURCES
from reelworks.data.loader.data_spec import DataSpec
from reelworks.data.loader.eligibility import ExcludeList

# Only the buckets that result from these are digested.
_BUCKET_SEARCH = {"entries", "max_tokens", "max_batch_size", "tuned"}
# Clips that lack a companion, and how videos are cut, are covered by the catalog's digest.
_NOT_OF_A_PLAN = {
    "path",
    "root",
    "clip_seconds",
    "scene_cuts",
    *SHOWING,
    "control",
    "source",
    "min_sources",
    "loss_mask",
}
# Left out where they are not set, so that plans that know nothing of them keep their digests.
_LATER = {"resolutions": None, "lengths": None, "duplicates": "keep"}


def digest(spec: DataSpec, table: BucketTable, exclude_list: ExcludeList) -> str:
    """Return `PlanSpec.buckets_digest`: of the buckets, and of all settings that decide which clips they have."""
    return digests.digest_json(
        [
            [[b.name, *b.shape.__dict__.values(), b.batch_size] for b in table.buckets],
            table.config.model_dump(exclude=_BUCKET_SEARCH),
            # What a degree changes in a plan is in the batch sizes of its specification.
            [entry.model_dump(exclude={"sequence_degree"}) for entry in table.given],
            spec.data.frame_interval,
            spec.data.frame_rate,
            [_settings_of_a_plan(dataset) for dataset in spec.datasets],
            spec.data.short_clips,
            spec.split,
            spec.group,
            spec.data.locality,
            exclude_list.digest(),
            *_source_counts(spec),
            *(() if spec.sound is None else (spec.sound.missing,)),
        ]
    )


def _source_counts(spec: DataSpec) -> list[list[int | None]]:
    """Return numbers of sources and the least ones of all datasets; nothing if all clips have the same number."""
    counts = [[sum(kind in d.companions for kind in SOURCES), d.min_sources] for d in spec.datasets]
    if spec.source_multiple is not None and any(count for count, _ in counts):
        return [*counts, list(spec.source_multiple)]
    return [] if all(count == counts[0] and count[1] is None for count in counts) else counts


def _settings_of_a_plan(dataset: DatasetConfig) -> dict[str, Any]:
    values = dataset.model_dump(exclude=_NOT_OF_A_PLAN)
    return {key: value for key, value in values.items() if key not in _LATER or value != _LATER[key]}


def merge_targets(table: BucketTable, incomplete_batch: str) -> tuple[int, ...]:
    """Return `PlanSpec.merge_to`: the bucket that takes each bucket's incomplete batches, or nothing."""
    return tuple(assign.targets(table).tolist()) if incomplete_batch == "merge" else ()
