"""Write the record of a segment: its plan in the order of the steps, and why each other live clip is left out."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core import digests, files
from reelworks.core.arrays import I64
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.store import copies
from reelworks.data.catalog.store.companions import Problem
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import clip_uses
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.plan_cache import Unplanned
from reelworks.data.loader.position import DataPosition
from reelworks.data.run import records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import About, BucketShape, Record, RecordError
from reelworks.data.schedule.plan import EpochPlan

LABELS = [*(reason.label for reason in Reason), records.CONSUMED]
_CONSUMED = len(LABELS) - 1


def begin(run: RunFolder, data: Dataset, position: DataPosition, recipe_file: str) -> Record:
    """Write the record of the segment that a position is in, and return it; `recipe_file` is below `recipes/`.

    Raises:
        OSError: The record could not be written.
    """
    kept_catalog = copies.keep(data.catalog, run.coverage_folder)
    # The files that the recipe names may change.
    exclude_list = "".join(f"{line}\n" for line in data.exclude_list.lines)
    about = About(
        data_restarts=position.data_restarts,
        epoch=position.epoch,
        segment=position.segment,
        stage=position.stage.name,
        time=time.time(),
        first_step=position.global_step - position.plan_step,
        steps=position.plan.num_steps,
        planned=position.plan.planned,
        plan=position.plan.digest(),
        catalog_digest=data.digest,
        spec_digest=position.spec.digest(),
        spec={k: list(v) if isinstance(v, tuple) else v for k, v in asdict(position.spec).items()},
        recipe=recipe_file,
        exclude_list=run.keep_input("exclude.txt", exclude_list) if data.spec.exclude_file else None,
        costs=run.keep_input("costs.json", files.to_json(data.measured_ms)) if data.spec.cost.measured else None,
        catalog=kept_catalog.name,
        catalog_version=data.catalog.version,
        catalog_uids=uids_digest(data.catalog),
        datasets=[dataset.dataset_name for dataset in data.spec.datasets],
        buckets=[BucketShape(name=b.name, batch_size=b.batch_size, **vars(b.shape)) for b in data.table.buckets],
        entries=[str(entry) for entry in data.table.entries],
        uses=clip_uses.of_datasets(data.spec.datasets),
    )
    plan = position.plan
    where, plan_step, column, size = _in_order_of_steps(plan)
    others = data.planned(position.spec, position.key, position.excluded).others
    record = Record(
        about,
        plan.ordinal[where],
        plan.copy[where],
        plan.repeat_index[where],
        plan_step,
        column,
        plan.micro_bucket[plan.steps[plan_step, column]],
        size,
        others.ordinal,
        others.copy,
        np.where(others.reason == Reason.NONE, _CONSUMED, others.reason).astype(np.int32),
        others.nearest,
        notes(data, others),
        LABELS,
        position.aliases.ordinal,
        position.aliases.key,
    )
    records.write(run, record)
    return record


def is_recorded(run: RunFolder, data: Dataset, position: DataPosition) -> bool:
    """Return whether a segment has a record that is intact, and of the same data."""
    try:
        about = records.read(run, position.key, position.plan.digest()).about
    except RecordError:
        return False
    return (about.catalog_digest, about.spec_digest) == (data.digest, position.spec.digest())


def uids_digest(catalog: Catalog) -> str:
    """Return the digest of the uids of a catalog's rows, which differs if the catalog was scanned again."""
    return digests.digest_arrays(uid=catalog.uids())


def _in_order_of_steps(plan: EpochPlan) -> tuple[I64, I64, I64, I64]:
    """Return the plan's clip indices in the order of its steps, then step, column and size of each micro-batch."""
    plan_step, column = np.nonzero(plan.steps >= 0)
    micro_batch = plan.steps[plan_step, column]
    size = np.diff(plan.offsets)[micro_batch]
    where = np.repeat(plan.offsets[micro_batch] - (np.cumsum(size) - size), size) + np.arange(int(size.sum()))
    return where, plan_step, column, size


def notes(data: Dataset, others: Unplanned) -> Any:
    """Return details of the reasons for which clips are left out, null where the reason has none.

    Those of a companion say which is wrong and how, and those of a filter are the parts that the clip fails: a filter again.
    """
    texts = pa.nulls(len(others.ordinal), pa.string())
    lacks = others.reason == Reason.NO_COMPANION
    row = data.rows_at(others.ordinal[lacks])
    found = pa.nulls(len(row), pa.string())
    for kind, companions in data.companions.items():
        problems = [f"{kind} {problem.name.lower().replace('_', ' ')}" for problem in list(Problem)[1:]]
        named = pa.array([None, *problems], type=pa.string()).take(pa.array(companions.problem[row]))
        found = pc.coalesce(found, named)
    texts = pc.replace_with_mask(texts, pa.array(lacks), found)
    filtered = others.reason == Reason.FILTERED
    failed = data.failed_filters.take(pa.array(data.rows_at(others.ordinal[filtered])))
    return pc.replace_with_mask(texts, pa.array(filtered), failed.cast(pa.string()))


def recorded_catalog(run: RunFolder, about: About) -> Catalog:
    """Open the run's copy of a record's catalog, at the version that the segment was planned on.

    Raises:
        RecordError: The copy is missing or damaged.
    """
    folder = run.coverage_folder / about.catalog
    try:
        catalog = Catalog.open(folder, about.catalog_version)
        same = uids_digest(catalog) == about.catalog_uids
    except UserError as error:
        raise RecordError(f"{folder.name}, the run's copy of the catalog, cannot be read: {error.problem}") from error
    if not same:
        raise RecordError(f"{folder.name}, the run's copy of the catalog, has changed since it was written")
    return catalog
