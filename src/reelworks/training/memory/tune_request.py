"""The request of `reelworks tune` and of `tune.tune`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reelworks.core import requests
from reelworks.core.errors import UserError
from reelworks.core.requests import arg

if TYPE_CHECKING:
    from reelworks.data.buckets.table import BucketTable
    from reelworks.data.catalog.scan.scan import ScanProgress
    from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """A recipe whose batch sizes and times are measured, or estimated, or taken from a run.

    Attributes:
        recipe: A recipe (a TOML file).
        out: File to write; default: RECIPE with .tuned.json.
        memory_gb: Memory to use; default: 92 % of the GPU, or half of what a CPU has free.
        step_seconds: Longest time of a micro-batch of several clips, with its optimizer step.
        max_batch: Most clips of a micro-batch.
        estimate: Compute instead of measuring, for a GPU of --memory.
        from_run: Measure no batch sizes: take the times from the steps of a run.
    """

    recipe: Path = arg(..., metavar="RECIPE", is_option=False)
    out: Path | None = arg(None, names=("--out", "-o"), metavar="FILE")
    memory_gb: float | None = arg(None, least=0.1, names=("--memory",), metavar="GB")
    step_seconds: float | None = arg(None, least=0.001, metavar="S")
    max_batch: int = arg(512, least=1, metavar="N")
    estimate: bool = arg(False)
    from_run: Path | None = arg(None, metavar="RUN")
    data_path: Path | None = arg(None, requests.DATA_PATH)
    overrides: tuple[str, ...] = arg((), requests.OVERRIDES, names=("--set",), metavar="A.B=V")

    def __post_init__(self) -> None:
        with requests.checked(self):
            if self.estimate and self.memory_gb is None and self.from_run is None:
                raise UserError(
                    "an estimate needs the memory of the GPU",
                    code="memory-not-given",
                    field="memory_gb",
                    remedy="give it in GB, as in --memory 24",
                )

    def load(self, on_scan: Callable[[ScanProgress], None] | None = None) -> tuple[Recipe, BucketTable]:
        """Return the recipe of the first stage, without the file that it names and that is not written yet, and the buckets of all."""
        from reelworks.data.buckets import table, tuned
        from reelworks.training.recipe import dataset, recipe_file

        stages = []
        for recipe in recipe_file.each_stage(recipe_file.load(self.recipe, self.overrides, self.data_path)):
            entries, settings = tuned.unmeasured(recipe.bucket, recipe.buckets)
            cost = recipe.cost.model_copy(update={"measured": None})
            group = {"sequence_degree": recipe.parallel.group_size, "max_sequence_degree": None}
            update = {"bucket": entries, "buckets": settings, "parallel": recipe.parallel.model_copy(update=group)}
            stages.append(dataset.bucket_table(recipe.model_copy(update=update | {"cost": cost}), on_scan))
        return stages[0][0], table.joined([own for _, own in stages])

    @property
    def path(self) -> Path:
        """File to write."""
        return self.out or self.recipe.with_suffix(".costs.json" if self.from_run is not None else ".tuned.json")
