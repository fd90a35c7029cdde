"""The page of a plan, drawn only from its forecast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from markupsafe import Markup

from reelworks.core import files, units
from reelworks.reports import page, run_facts
from reelworks.reports.plots import COLOURS
from reelworks.reports.run_facts import BarPart, Fact
from reelworks.training.memory import recomputation
from reelworks.training.plan import compiled_graphs
from reelworks.training.plan.plan_fixes import RanksFigures
from reelworks.training.plan.plan_forecast import PlanForecast

_LENGTH = 1000.0
_OVERLAP = 0.003  # below the next column and part, to hide seams between them


def bar(parts: Sequence[BarPart], whole: float = 1.0) -> Markup:
    """Draw parts from left to right; the rest of the whole stays empty."""
    rects, left = [], 0.0
    for part in parts:
        rects.append(_rect(part, left, 0, part.share / whole, 1))
        left += part.share / whole
    return _svg("share", rects)


def strip(columns: Sequence[Sequence[BarPart]]) -> Markup:
    """Draw columns of equal width from left to right, each with its parts from the top down."""
    rects, width = [], 1 / max(len(columns), 1)
    for i, parts in enumerate(columns):
        top = 0.0
        for part in parts:
            rects.append(_rect(part, i * width, top, width + _OVERLAP, part.share + _OVERLAP))
            top += part.share
    return _svg("strip", rects)


def _rect(part: BarPart, left: float, top: float, width: float, height: float) -> Markup:
    edges = (f"{_LENGTH * edge:.2f}" for edge in (left, top, width, height))
    tooltip = f"{part.label}: {units.percent(part.share)}"
    rect = Markup('<rect x="{}" y="{}" width="{}" height="{}" style="fill: var(--{})"><title>{}</title></rect>')
    return rect.format(*edges, part.tone, tooltip)


def _svg(kind: str, rects: Iterable[Markup]) -> Markup:
    opening = f'<svg class="{kind}" viewBox="0 0 {_LENGTH:g} {_LENGTH:g}" preserveAspectRatio="none" shape-rendering="crispEdges">'
    return Markup(opening) + Markup("").join(rects) + Markup("</svg>")


_SCALE = 0.1  # a full bar of waste means at least this share
_MEASURES = ("clips", "tokens", "time", "gradient")
_OTHERS = "muted"
_WASTED = (("GPUs wait", "c8"), ("copies that pad", "c5"))


def write_plan_page(forecast: PlanForecast, name: str, file: Path) -> None:
    """Write a forecast of the recipe of this name as one HTML file."""
    text = page.render(
        "plan.html",
        figures=[],
        name=name,
        forecast=forecast,
        headline=headline(forecast),
        shares=shares(forecast),
        course=course(forecast),
        tones=_tones(forecast),
        waste=waste(forecast),
        wasted=dict(_WASTED),
        cut={one.name: one.mean for one in forecast.losses.crop.by_bucket},
        frames={one.name: one.trained / one.there for one in forecast.losses.frames.by_bucket},
        graphs=[*compiled_graphs.lines(forecast.graphs), *recomputation.lines_of_plan(forecast.recomputation)],
        accounting=run_facts.accounting(forecast),
        balance=run_facts.balance(forecast),
        reasons=run_facts.reasons(forecast),
        labels={name: label for name, (label, _) in run_facts.REASONS.items()},
    )
    files.write_for("--html", file, text.encode())


def headline(forecast: PlanForecast) -> list[Fact]:
    """Return the cards on top of the page: shares over all epochs, counts of the first one."""
    total, epochs = forecast.ahead.sum, len(forecast.ahead.epochs)
    sizes = [bucket.global_batch for bucket in forecast.buckets]
    batch = " to ".join(units.count(size) for size in sorted({min(sizes), max(sizes)}))
    over = f"in {units.plural(epochs, 'epoch')}"
    not_full = f"of {units.count(forecast.micro_batches)} micro-batches"
    return [
        Fact("Steps an epoch", units.count(forecast.steps_per_epoch), f"{units.count(total.steps)} {over}"),
        Fact("Global batch", batch, "clips a step, by bucket"),
        Fact("Imbalance", units.percent(total.imbalance), "of the time GPUs wait for the slowest one"),
        Fact("Padding", units.percent(total.padding), "of samples are copies of weight 0"),
        Fact("Total waste", units.percent(total.waste), "of the time trains nothing"),
        Fact("Incomplete batches", units.count(forecast.incomplete), not_full),
        Fact("Clips scanned", units.count(forecast.catalog.clips), ""),
        Fact("Planned", units.count(forecast.planned), "in the first epoch"),
        Fact("Held out", units.count(forecast.held_out), "for validation"),
        Fact("Never seen", units.count(forecast.ahead.never_seen.clips), over),
    ]


def _tones(forecast: PlanForecast) -> dict[str, str]:
    """Return the colour of each group of buckets, in the strip's order."""
    names = [one.group for one in forecast.ahead.course.groups]
    return {name: f"c{i + 1}" if i < COLOURS else _OTHERS for i, name in enumerate(names)}


def shares(forecast: PlanForecast) -> list[tuple[str, Markup]]:
    """Return a bar for each measure, divided by the groups' shares of it."""
    tones, bars = _tones(forecast), []
    for measure in _MEASURES:
        of_group = Counter[str]()
        for one in forecast.ahead.shares:
            of_group[one.group] += getattr(one, f"share_of_{measure}")
        parts = [BarPart(name, 0, of_group[name], tones.get(name, _OTHERS)) for name in {**tones, **of_group}]
        bars.append((measure, bar(parts)))
    return bars


def course(forecast: PlanForecast) -> Markup:
    """Draw the steps of the first epoch from left to right, coloured by bucket group."""
    names = list(_tones(forecast).items())
    columns = []
    for counts in zip(*(one.micro_batches for one in forecast.ahead.course.groups), strict=True):
        named = zip(names, counts, strict=True)
        columns.append([BarPart(name, n, n / sum(counts), tone) for (name, tone), n in named if n])
    return strip(columns)


def waste(forecast: PlanForecast) -> list[tuple[str, list[tuple[str, Markup, float]]]]:
    """Return titled bars of wasted time, by number of GPUs and by epoch; titles with a single bar are left out."""
    epochs = [(f"epoch {one.epoch}", one.figures) for one in forecast.ahead.epochs]
    current = RanksFigures(forecast.world, forecast.ahead.epochs[0].figures)
    worlds = [(units.plural(one.world, "GPU"), one.figures) for one in (*forecast.smaller_worlds, current)]
    drawn = [("By number of GPUs that a run begins with", worlds), ("By epoch", epochs)]
    titled = []
    for title, rows in drawn:
        bars, scale = [], max(_SCALE, *(one.waste for _, one in rows))
        for label, one in rows:
            shares = zip(_WASTED, (one.imbalance, max(one.waste - one.imbalance, 0.0)), strict=True)
            bars.append(
                (label, bar([BarPart(name, 0, share, tone) for (name, tone), share in shares], scale), one.waste)
            )
        if len(rows) > 1:
            titled.append((title, bars))
    return titled
