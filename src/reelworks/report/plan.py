"""A forecast as a page: drawn from the value that `plan --json` prints, and from nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reelworks.core import units
from reelworks.report import page, run_facts, svg
from reelworks.report.plots import COLOURS
from reelworks.report.run_facts import Fact, Part

Json = dict[str, Any]
_SCALE = 0.1  # of waste: less than this does not fill a bar
_MEASURES = ("clips", "tokens", "time", "gradient")
_OTHERS = "muted"
_WASTED = (("GPUs wait", "c8"), ("copies that pad", "c5"))


def write_plan_page(told: Json, name: str, file: Path) -> None:
    """Draw a forecast as one HTML file.

    Args:
        told: What `analysis.plan_report.forecast` returned.
        name: Of the recipe.
        file: Where to write.

    Raises:
        UserError: The file cannot be written.
    """
    text = page.render(
        "plan.html",
        figures=[],
        name=name,
        told=told,
        headline=headline(told),
        shares=shares(told),
        course=course(told),
        tones=_tones(told),
        waste=waste(told),
        wasted=dict(_WASTED),
        cut={one["name"]: one["mean"] for one in told["crop"]["by_bucket"]},
        frames={one["name"]: one["trained"] / one["there"] for one in told["frames"]["by_bucket"]},
        accounting=run_facts.accounting(told),
        balance=run_facts.balance(told),
        reasons=run_facts.reasons(told),
        labels={name: label for name, (label, _) in run_facts.REASONS.items()},
    )
    page.write(file, text)


def headline(told: Json) -> list[Fact]:
    """Cards on top of the page; shares are over all epochs, counts of the first one."""
    total, epochs = told["sum"], len(told["epochs"])
    sizes = [bucket["global_batch"] for bucket in told["buckets"]]
    batch = " to ".join(units.count(size) for size in sorted({min(sizes), max(sizes)}))
    over = f"in {units.plural(epochs, 'epoch')}"
    not_full = f"of {units.count(told['micro_batches'])} micro-batches"
    return [
        Fact("Steps an epoch", units.count(told["steps_per_epoch"]), f"{units.count(total['steps'])} {over}"),
        Fact("Global batch", batch, "clips a step, by bucket"),
        Fact("Imbalance", units.percent(total["imbalance"]), "of the time GPUs wait for the slowest"),
        Fact("Padding", units.percent(total["padding"]), "of places carry weight 0"),
        Fact("Waste in all", units.percent(total["waste"]), "of the time trains nothing"),
        Fact("Incomplete batches", units.count(told["incomplete"]), not_full),
        Fact("Clips scanned", units.count(told["catalog"]["clips"]), ""),
        Fact("Planned", units.count(told["planned"]), "in the first epoch"),
        Fact("Held out", units.count(told["held_out"]), "for validation"),
        Fact("Never seen", units.count(told["never_seen"]["clips"]), over),
    ]


def _tones(told: Json) -> dict[str, str]:
    """A colour for each group of buckets, in the strip's order."""
    names = [one["group"] for one in told["course"]["groups"]]
    return {name: f"c{i + 1}" if i < COLOURS else _OTHERS for i, name in enumerate(names)}


def shares(told: Json) -> list[tuple[str, Markup]]:
    """A bar for each measure: what the groups have of it."""
    return [(measure, svg.bar(_shares_of(told, f"share_of_{measure}"))) for measure in _MEASURES]


def _shares_of(told: Json, key: str) -> list[Part]:
    tones, of_group = _tones(told), Counter[str]()
    for row in told["shares"]:
        of_group[row["group"]] += row[key]
    return [Part(name, 0, of_group[name], tones.get(name, _OTHERS)) for name in {**tones, **of_group}]


def course(told: Json) -> Markup:
    """The first epoch from left to right: of which groups its steps are."""
    names = list(_tones(told).items())
    columns = []
    for counts in zip(*(one["micro_batches"] for one in told["course"]["groups"]), strict=True):
        named = zip(names, counts, strict=True)
        columns.append([Part(name, n, n / sum(counts), tone) for (name, tone), n in named if n])
    return svg.strip(columns)


def waste(told: Json) -> list[tuple[str, list[tuple[str, Markup, float]]]]:
    """Bars of wasted time by epoch and by number of GPUs, each with its title; what has one bar is left out."""
    epochs = [(f"epoch {one['epoch']}", one) for one in told["epochs"]]
    here = {"world": told["world"]} | told["epochs"][0]
    worlds = [(units.plural(one["world"], "GPU"), one) for one in [*told["smaller_worlds"], here]]
    drawn = [("By number of GPUs that a run begins with", worlds), ("By epoch", epochs)]
    return [(title, _bars(rows)) for title, rows in drawn if len(rows) > 1]


def _bars(rows: list[tuple[str, Json]]) -> list[tuple[str, Markup, float]]:
    scale = max(_SCALE, *(one["waste"] for _, one in rows))
    return [(label, svg.bar(_wasted(one), scale), one["waste"]) for label, one in rows]


def _wasted(one: Json) -> list[Part]:
    padding = max(one["waste"] - one["imbalance"], 0.0)
    shares = zip(_WASTED, (one["imbalance"], padding), strict=True)
    return [Part(label, 0, share, tone) for (label, tone), share in shares]
