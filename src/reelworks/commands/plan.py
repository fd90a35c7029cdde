"""`reelworks plan`: forecast what training would do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reelworks.commands import show
from reelworks.commands.options import Json
from reelworks.core.errors import UserError
from reelworks.training.plan import plan_request
from reelworks.training.plan.plan_request import PlanRequest

if TYPE_CHECKING:
    from reelworks.training.recipe.recipe import Recipe


def plan(request: PlanRequest, json: Json = False) -> None:
    """Forecast what training would do, without training.

    Prints buckets, counts, reasons, steps per epoch, global batches and imbalance of the first epoch; the share of
    each bucket and each dataset in clips, tokens, time and gradients; the totals of all planned epochs, and the clips
    that none of them trains. If imbalance or padding is above 10 %, it proposes values for --set that reduce them, and
    prints the plan with each. With several GPUs the plan stands beside those of a fixed batch size and of equal tokens.

    A recipe with stages is planned stage by stage, with the time and memory of each and the disk of all, for which its
    network is built without weights.

    With --diff it prints the keys that differ, and for both recipes, or each stage of both, steps, imbalance, padding,
    and clips by bucket and by reason. With a run in place of the recipe, --rejected lists the clips that its latest segment left out.

    Scans the data unless --no-scan is given; loads no weights.
    """
    from reelworks.commands import show_plan
    from reelworks.data.run.folder import RunFolder
    from reelworks.training.plan import plan_comparison, rejections

    if request.run is not None:
        assert request.rejected is not None
        segment = rejections.write_recorded(request.rejected, RunFolder(request.run))
        recorded = rejections.RecordedRejections(request.rejected, segment)
        show.json(recorded) if json else show.line(f"{request.rejected}: clips that {segment} left out")
        return
    recipes = [plan_request.load(request, path) for path in request.recipes]
    if any(recipe.stage for recipe in recipes):
        _stages(request, recipes, json)
        return
    forecasts = []
    for path in request.recipes:
        with show.scan_progress(quiet=json) as on_scan:
            forecasts.append(plan_request.forecast(request, path, on_scan))
    if request.diff:
        compared = plan_comparison.compare(*[(recipe, forecast) for recipe, _, forecast in forecasts])
        before, after = request.recipes
        show.json(compared) if json else show_plan.difference(compared, (str(before), str(after)))
        return
    ((_, data, forecast),) = forecasts
    if request.named_gpu is not None:
        with show.loading():
            from reelworks.training.preflight import stage_forecast

        forecast = replace(forecast, on_gpu=stage_forecast.of_gpu(data, forecast, request.named_gpu))
    if request.html is not None:
        from reelworks.reports.plan import write_plan_page

        write_plan_page(forecast, request.recipes[0].stem, request.html)
    show.json(forecast) if json else show_plan.forecast(forecast, request.html)


def _stages(request: PlanRequest, recipes: list[Recipe], json: bool) -> None:
    from reelworks.commands import show_plan

    names = [recipe.stage[0].name if recipe.stage else None for recipe in recipes]
    for field in ("html", "rejected"):
        if value := getattr(request, field):
            raise UserError(
                "it is about one stage, and a recipe has several",
                code="stage-not-chosen",
                field=f"--{field}",
                value=str(value),
                remedy=f"choose it: --set stage={names[0]}",
            )
    if None in names:
        raise UserError(
            "only one of the recipes has stages",
            code="stages-of-one-recipe",
            field="--diff",
            value=str(request.recipes[names.index(None)]),
            remedy="write what this recipe trains as a [[stage]]",
        )
    with show.loading():
        from reelworks.training.preflight import stage_forecast

    found = []
    for recipe in recipes:
        with show.scan_progress(quiet=json) as on_scan:
            scan = partial(plan_request.scan, request, on_scan=on_scan)
            world = max(request.world, recipe.parallel.group_size)
            found.append((recipe, stage_forecast.forecast(recipe, scan, world, request.epochs, request.named_gpu)))
    if request.diff:
        compared = stage_forecast.compare(*found)
        before, after = map(str, request.recipes)
        show.json(compared) if json else show_plan.difference_of_stages(compared, (before, after))
        return
    ((_, forecast),) = found
    show.json(forecast) if json else show_plan.stages(forecast)
