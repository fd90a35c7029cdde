"""The request of `reelworks plan`, and the forecasts of its recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reelworks.core import gpus, requests
from reelworks.core.errors import UserError
from reelworks.core.gpus import Gpu
from reelworks.core.requests import arg

if TYPE_CHECKING:
    from reelworks.data.catalog.scan.scan import ScanProgress
    from reelworks.training.plan.plan_forecast import PlanForecast
    from reelworks.training.recipe.dataset import RecipeData
    from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Recipes to plan, or a run whose plan is looked into.

    Attributes:
        recipes: A recipe; two with --diff; or a run with --rejected.
        world: Number of GPUs to plan for.
        gpu: Also forecast time and memory for GPUs such as H100, for which the network is built without weights.
        epochs: Number of epochs to plan.
        rejected: Also write all clips that the first epoch leaves out, with reasons, as .csv, .parquet, .jsonl or .txt.
        diff: Compare two recipes and their plans; --set and --data-path apply to both.
        no_scan: Plan on the catalog as it is, without listing the files again.
    """

    recipes: tuple[Path, ...] = arg(..., metavar="RECIPE", is_option=False)
    world: int = arg(1, least=1)
    gpu: str | None = arg(None, metavar="NAME")
    epochs: int = arg(1, least=1)
    html: Path | None = arg(None, requests.HTML, metavar="FILE")
    rejected: Path | None = arg(None, metavar="FILE")
    diff: bool = arg(False)
    no_scan: bool = arg(False)
    data_path: Path | None = arg(None, requests.DATA_PATH)
    overrides: tuple[str, ...] = arg((), requests.OVERRIDES, names=("--set",), metavar="A.B=V")

    def __post_init__(self) -> None:
        with requests.checked(self):
            assert self.named_gpu or self.gpu is None  # an unknown one is refused
            for field, value in (("html", self.html), ("rejected", self.rejected), ("gpu", self.gpu)):
                if self.diff and value is not None:
                    raise UserError(
                        "it tells of a single plan",
                        code="one-plan-only",
                        field=field,
                        value=str(value),
                        remedy=f"leave out --diff or --{field}",
                    )
            if len(self.recipes) != (2 if self.diff else 1):
                raise UserError(
                    "--diff compares exactly two recipes" if self.diff else "only one recipe is planned at a time",
                    code="wrong-number-of-recipes",
                    field="recipes",
                    value=[str(path) for path in self.recipes],
                    remedy="give two, as in --diff a.toml b.toml" if self.diff else "add --diff to compare two",
                )

    @property
    def named_gpu(self) -> Gpu | None:
        """The GPU that --gpu names; raises `UserError` if it is not known."""
        return None if self.gpu is None else gpus.of_name(self.gpu)

    @property
    def run(self) -> Path | None:
        """The run whose left-out clips are asked for, if it is one."""
        return self.recipes[0] if self.rejected is not None and self.recipes[0].is_dir() else None


def load(request: PlanRequest, path: Path) -> Recipe:
    """Read one of the recipes."""
    from reelworks.training.recipe import recipe_file

    return recipe_file.load(path, request.overrides, request.data_path)


def scan(request: PlanRequest, recipe: Recipe, on_scan: Callable[[ScanProgress], None] | None) -> None:
    """Bring the catalog of a recipe up to date, unless the request says otherwise."""
    from reelworks.training.recipe import dataset

    if not request.no_scan:
        dataset.scan_recipe(recipe, on_scan)


@requests.telling(PlanRequest)
def forecast(
    request: PlanRequest, path: Path, on_scan: Callable[[ScanProgress], None] | None = None
) -> tuple[Recipe, RecipeData, PlanForecast]:
    """Forecast what training of one of the recipes would do, and write the clips that it leaves out, if asked for.

    The data are those that the forecast is of.
    """
    from reelworks.data.schedule.cursor import StageStart
    from reelworks.training.plan import plan_forecast, rejections
    from reelworks.training.recipe import dataset, recipe_file

    whole, index = recipe_file.load_whole(path, request.overrides, request.data_path)
    recipe = whole if index is None else recipe_file.of_stage(whole, index)
    scan(request, recipe, on_scan)
    # A recipe whose clips are shared by several GPUs is planned for that many at least.
    world = max(request.world, recipe.parallel.group_size)
    try:
        data = plan_forecast.settled(dataset.RecipeData.open(recipe), world, request.named_gpu)
        if index is not None:
            data.stage = StageStart(whole.stage[index].name)
        found = plan_forecast.forecast(recipe, world, request.epochs, data)
    except UserError as error:
        if error.code == "empty-epoch" and request.rejected is not None:
            rejections.write(request.rejected, dataset.RecipeData.open(recipe), 0)
            error.reword(
                field=error.field, remedy=f"{request.rejected} has each clip that is left out, with its reason"
            )
        raise
    if request.rejected is not None:
        rejections.write(request.rejected, dataset.RecipeData.open(recipe), found.ahead.epochs[0].epoch)
    return recipe, data, found
