"""Reelworks trains video and image diffusion models on footage of every shape.

The names below are the library's public API. Each is imported when it is first asked for, so that
`import reelworks` costs nothing and loads no torch:

    import reelworks as rw

    catalog = rw.Catalog.scan("footage/", to="catalog/")
    table = rw.BucketTable.from_entries([rw.BucketEntry("480p", num_frames=[1, 17])], geometry=...)
    dataset = rw.Dataset(catalog, table, seed=42)
    for step in rw.Loader(dataset, micro_batches_per_step=8):
        for micro_batch in step:
            ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reelworks.core.version import __version__ as __version__

if TYPE_CHECKING:
    import reelworks.models.objectives.samplers.functions as _samplers
    from reelworks import testing as testing
    from reelworks.core.shape import Geometry as Geometry
    from reelworks.data.buckets.table import BucketEntry as BucketEntry
    from reelworks.data.buckets.table import BucketTable as BucketTable
    from reelworks.data.catalog.config import DatasetConfig as DatasetConfig
    from reelworks.data.catalog.store.store import Catalog as Catalog
    from reelworks.data.checkpoint.config import KeepBest as KeepBest
    from reelworks.data.checkpoint.config import Retention as Retention
    from reelworks.data.checkpoint.store import CheckpointStore as CheckpointStore
    from reelworks.data.loader.data_spec import DataSpec as DataSpec
    from reelworks.data.loader.dataset import Dataset as Dataset
    from reelworks.data.loader.loader import Loader as Loader
    from reelworks.data.loader.micro_batch import MicroBatch as MicroBatch
    from reelworks.data.loader.step import Step as Step
    from reelworks.data.media.config import DataConfig as DataConfig
    from reelworks.inference.generate.export_run import export as export
    from reelworks.inference.generate.load_run import load_model as load_model
    from reelworks.models.attention.attention_audit import check_attention as check_attention
    from reelworks.models.objectives import objectives as objectives
    from reelworks.training.loop.trainer import train as train
    from reelworks.training.plan.plan import plan as plan
    from reelworks.training.recipe.recipe import Recipe as Recipe

    samplers = _samplers

_MODULES = {
    "objectives": "reelworks.models.objectives.objectives",
    "samplers": "reelworks.models.objectives.samplers.functions",
    "testing": "reelworks.testing",
}
_PLACES = {
    "BucketEntry": "reelworks.data.buckets.table",
    "BucketTable": "reelworks.data.buckets.table",
    "Catalog": "reelworks.data.catalog.store.store",
    "CheckpointStore": "reelworks.data.checkpoint.store",
    "DataConfig": "reelworks.data.media.config",
    "DataSpec": "reelworks.data.loader.data_spec",
    "Dataset": "reelworks.data.loader.dataset",
    "DatasetConfig": "reelworks.data.catalog.config",
    "Geometry": "reelworks.core.shape",
    "KeepBest": "reelworks.data.checkpoint.config",
    "Loader": "reelworks.data.loader.loader",
    "MicroBatch": "reelworks.data.loader.micro_batch",
    "Recipe": "reelworks.training.recipe.recipe",
    "Retention": "reelworks.data.checkpoint.config",
    "Step": "reelworks.data.loader.step",
    "check_attention": "reelworks.models.attention.attention_audit",
    "export": "reelworks.inference.generate.export_run",
    "load_model": "reelworks.inference.generate.load_run",
    "plan": "reelworks.training.plan.plan",
    "train": "reelworks.training.loop.trainer",
}

__all__ = sorted([*_MODULES, *_PLACES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'reelworks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
