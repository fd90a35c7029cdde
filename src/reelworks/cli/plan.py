"""`reelworks plan`: forecast what training would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from reelworks.cli import show
from reelworks.cli.options import DataPath, Html, Json, Overrides, load_recipe
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from reelworks.recipe.recipe import Recipe


def plan(
    recipes: Annotated[
        list[Path], Argument(metavar="RECIPE", help="A recipe; two with --diff; or a run with --rejected.")
    ],
    world: Annotated[int, Option(min=1, help="Number of GPUs to plan for.")] = 1,
    epochs: Annotated[int, Option(min=1, help="Number of epochs to plan.")] = 1,
    html: Html = None,
    rejected: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Also write all clips that the first epoch leaves out, with reasons, as .csv, .parquet, .jsonl or .txt.",
        ),
    ] = None,
    diff: Annotated[
        bool, Option("--diff", help="Compare two recipes and their plans; --set and --data-path apply to both.")
    ] = False,
    no_scan: Annotated[
        bool, Option("--no-scan", help="Plan on the catalog as it is, without listing the files again.")
    ] = False,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Forecast what training would do, without training.

    Prints buckets, counts, reasons, steps per epoch, global batches and imbalance of the first epoch; the share of
    each bucket and each dataset in clips, tokens, time and gradients; the totals of all planned epochs, and the clips
    that none of them trains. If imbalance or padding is above 10 %, it proposes values for --set that reduce them, and
    prints the plan with each.

    With --diff it prints the keys that differ, and for both recipes steps, imbalance, padding, and clips by bucket and
    by reason. With a run in place of the recipe, --rejected lists the clips that its latest segment left out.

    Scans the data unless --no-scan is given; loads no model.
    """
    from reelworks.analysis import plan_report
    from reelworks.cli import show_plan

    _check_options(recipes, diff, {"--html": html, "--rejected": rejected})
    if rejected is not None and recipes[0].is_dir():
        from reelworks.analysis import rejections
        from reelworks.run.folder import RunFolder

        segment = rejections.write_recorded(rejected, RunFolder(recipes[0]))
        show.json({"rejected": str(rejected), "segment": segment}) if json else show.line(
            f"{rejected}: clips that {segment} left out"
        )
        return
    forecasts = [
        _forecast(load_recipe(path, overrides, data_path), world, epochs, quiet=json, scan=not no_scan)
        for path in recipes
    ]
    if diff:
        compared = plan_report.compare(*forecasts)
        show.json(compared) if json else show_plan.difference(compared, (str(recipes[0]), str(recipes[1])))
        return
    (recipe, forecast), (path,) = forecasts[0], recipes
    if rejected is not None:
        from reelworks.analysis import rejections
        from reelworks.recipe.dataset import RecipeData

        rejections.write(rejected, RecipeData.open(recipe), 0)
    if html is not None:
        from reelworks.report.plan import write_plan_page

        write_plan_page(forecast, path.stem, html)
    show.json(forecast) if json else show_plan.forecast(forecast, html)


def _forecast(recipe: Recipe, world: int, epochs: int, *, quiet: bool, scan: bool) -> tuple[Recipe, dict[str, Any]]:
    from reelworks.analysis import plan_report
    from reelworks.recipe import dataset

    if scan:
        with show.scan_progress(quiet=quiet) as on_progress:
            scanned = dataset.scan_recipe(recipe, on_progress)
        for note in () if quiet else scanned.notes:
            show.line(note)
    # A recipe whose clips are shared by several GPUs is planned for that many at least.
    return recipe, plan_report.forecast(recipe, max(world, recipe.parallel.sequence_degree), epochs)


def _check_options(recipes: list[Path], diff: bool, files: dict[str, Path | None]) -> None:
    for option, path in files.items():
        if diff and path is not None:
            raise UserError(
                "the file describes a single plan",
                code="one-plan-only",
                field=option,
                value=str(path),
                remedy=f"leave out --diff or {option}",
            )
    if len(recipes) != (2 if diff else 1):
        raise UserError(
            "--diff compares exactly two recipes" if diff else "only one recipe is planned at a time",
            code="wrong-number-of-recipes",
            field="RECIPE",
            value=[str(path) for path in recipes],
            remedy="give two, as in --diff a.toml b.toml" if diff else "add --diff to compare two",
        )
