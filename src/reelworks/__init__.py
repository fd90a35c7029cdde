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

__version__ = "0.1.0"

if TYPE_CHECKING:
    import reelworks.diffusion.samplers.functions as _samplers
    from reelworks import testing as testing
    from reelworks.analysis.plan import plan as plan
    from reelworks.buckets.table import BucketEntry as BucketEntry
    from reelworks.buckets.table import BucketTable as BucketTable
    from reelworks.catalog.config import DatasetConfig as DatasetConfig
    from reelworks.catalog.store import Catalog as Catalog
    from reelworks.checkpoint.config import KeepBest as KeepBest
    from reelworks.checkpoint.config import Retention as Retention
    from reelworks.checkpoint.store import CheckpointStore as CheckpointStore
    from reelworks.core.shape import Geometry as Geometry
    from reelworks.data.data_spec import DataSpec as DataSpec
    from reelworks.data.dataset import Dataset as Dataset
    from reelworks.data.loader import Loader as Loader
    from reelworks.data.micro_batch import MicroBatch as MicroBatch
    from reelworks.data.step import Step as Step
    from reelworks.diffusion import objectives as objectives
    from reelworks.generate.export_run import export as export
    from reelworks.generate.load_run import load_model as load_model
    from reelworks.media.config import DataConfig as DataConfig
    from reelworks.models.attention_audit import check_attention as check_attention
    from reelworks.recipe.recipe import Recipe as Recipe
    from reelworks.train.trainer import train as train

    samplers = _samplers

_MODULES = {
    "export": "reelworks.export",
    "objectives": "reelworks.diffusion.objectives",
    "samplers": "reelworks.diffusion.samplers.functions",
    "testing": "reelworks.testing",
    "train": "reelworks.train",
}
_PLACES = {
    "BucketEntry": "reelworks.buckets.table",
    "BucketTable": "reelworks.buckets.table",
    "Catalog": "reelworks.catalog.store",
    "CheckpointStore": "reelworks.checkpoint.store",
    "DataConfig": "reelworks.media.config",
    "DataSpec": "reelworks.data.data_spec",
    "Dataset": "reelworks.data.dataset",
    "DatasetConfig": "reelworks.catalog.config",
    "Geometry": "reelworks.core.shape",
    "KeepBest": "reelworks.checkpoint.config",
    "Loader": "reelworks.data.loader",
    "MicroBatch": "reelworks.data.micro_batch",
    "Recipe": "reelworks.recipe.recipe",
    "Retention": "reelworks.checkpoint.config",
    "Step": "reelworks.data.step",
    "check_attention": "reelworks.models.attention_audit",
    "load_model": "reelworks.generate.load_run",
    "plan": "reelworks.analysis.plan",
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
