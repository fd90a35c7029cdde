"""`reelworks plan`: forecast what training would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reelworks.analysis import plan_request
from reelworks.analysis.plan_request import PlanRequest
from reelworks.cli import show
from reelworks.cli.options import Json
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from reelworks.recipe.recipe import Recipe


def plan(request: PlanRequest, json: Json = False) -> None:
    """Forecast what training would do, without training.

    Prints buckets, counts, reasons, steps per epoch, global batches and imbalance of the first epoch; the share of
    each bucket and each dataset in clips, tokens, time and gradients; the totals of all planned epochs, and the clips
    that none of them trains. If imbalance or padding is above 10 %, it proposes values for --set that reduce them, and
    prints the plan with each. With several GPUs the plan stands beside those of a fixed batch size and of equal tokens.

    A recipe with stages is planned stage by stage, with the time and memory of each and the disk of all, for which its
    network is built without weights.

    With --diff it prints the keys that differ, and for both recipes steps, imbalance, padding, and clips by bucket and
    by reason. With a run in place of the recipe, --rejected lists the clips that its latest segment left out.

    Scans the data unless --no-scan is given; loads no weights.
    """
    from reelworks.analysis import plan_comparison, rejections
    from reelworks.cli import show_plan
    from reelworks.run.folder import RunFolder

    if request.run is not None:
        assert request.rejected is not None
        segment = rejections.write_recorded(request.rejected, RunFolder(request.run))
        recorded = rejections.RecordedRejections(request.rejected, segment)
        show.json(recorded) if json else show.line(f"{request.rejected}: clips that {segment} left out")
        return
    for path in request.recipes:
        if (staged := plan_request.load(request, path)).stage:
            _stages(request, staged, json)
            return
    forecasts = []
    for path in request.recipes:
        with show.scan_progress(quiet=json) as on_scan:
            forecasts.append(plan_request.forecast(request, path, on_scan, (lambda note: None) if json else show.line))
    if request.diff:
        compared = plan_comparison.compare(*forecasts)
        before, after = request.recipes
        show.json(compared) if json else show_plan.difference(compared, (str(before), str(after)))
        return
    ((_, forecast),) = forecasts
    if request.html is not None:
        from reelworks.report.plan import write_plan_page

        write_plan_page(forecast, request.recipes[0].stem, request.html)
    show.json(forecast) if json else show_plan.forecast(forecast, request.html)


def _stages(request: PlanRequest, recipe: Recipe, json: bool) -> None:
    from reelworks.cli import show_plan

    for field in ("html", "rejected", "diff"):
        if value := getattr(request, field):
            raise UserError(
                "it is about one stage, and a recipe has several",
                code="stage-not-chosen",
                field=f"--{field}",
                value=None if value is True else str(value),
                remedy=f"choose it: --set stage={recipe.stage[0].name}",
            )
    with show.loading():
        from reelworks.train.preflight import stage_forecast

    with show.scan_progress(quiet=json) as on_scan:
        found = stage_forecast.forecast(
            recipe,
            lambda one: plan_request.scan(request, one, on_scan, (lambda note: None) if json else show.line),
            max(request.world, recipe.parallel.group_size),
            request.epochs,
        )
    show.json(found) if json else show_plan.stages(found)
