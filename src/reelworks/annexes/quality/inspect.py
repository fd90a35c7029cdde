"""Inspection of a catalog, as values and as a page: distributions, advice, proposed buckets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.annexes.quality import caption_advice
from reelworks.annexes.quality.caption_needs import CaptionNeeds
from reelworks.core import files, units
from reelworks.data.buckets import propose
from reelworks.data.buckets.propose import Proposal
from reelworks.data.catalog.store import measured_columns
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.summary import Histogram, Summary, classes, summarise
from reelworks.data.loader.dataset import Dataset
from reelworks.reports import columns, page
from reelworks.reports.columns import ColumnLimits, Counted
from reelworks.reports.plots import Figure
from reelworks.reports.run_facts import Fact
from reelworks.training.plan import data_advice
from reelworks.training.plan.data_advice import DataAdvice

_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
_TOKENS = (1, 9, 17, 33, 65, 129, 257)
_FOLDERS = 30
_POINTS = 2000  # in the plot of sizes; more would hide each other


@dataclass(frozen=True)
class Inspection:
    """Result of `inspect`. Histograms are lists of (label, count) without empty classes."""

    JSON_KEYS: ClassVar = (
        *("summary", "duration", "caption_tokens", "pictures_by_folder", "folders"),
        *("advice", "proposal", "columns"),
    )

    summary: Summary
    duration: Histogram  # lengths of readable videos in seconds
    caption_tokens: Histogram  # number of words and punctuation marks in the captions of readable clips
    pictures_by_folder: Histogram  # number of readable pictures in each folder, largest first
    folders: int  # number of folders with pictures
    sizes: list[tuple[int, int]]  # width and height in pixels of readable clips sampled evenly over the catalog
    advice: list[DataAdvice]
    proposal: Proposal
    columns: list[ColumnLimits]  # columns of numbers, with what limits on them would leave out
    counted: Counted  # the clips that these are about

    @property
    def histograms(self) -> list[tuple[str, str, Histogram]]:
        """Title, unit and classes of every non-empty distribution."""
        every = [
            ("resolution", "short side", self.summary.resolution),
            ("aspect ratio", "width : height", self.summary.aspect_ratio),
            ("frames", "frames", self.summary.num_frames),
            ("fps", "frames per second", self.summary.fps),
            ("duration", "seconds", self.duration),
            ("caption length", "words and punctuation marks", self.caption_tokens),
            ("pictures per folder", "folder", self.pictures_by_folder),
            *(
                (name, columns.heading(name).unit or "score", histogram)
                for name, histogram in self.summary.scores.items()
                if not measured_columns.is_label(name)
            ),
        ]
        return [(title, unit, histogram) for title, unit, histogram in every if histogram]


def inspect_rows(rows: CatalogRows, data: Dataset | None = None, needs: CaptionNeeds | None = None) -> Inspection:
    """Inspect catalog rows, usually `Catalog.live()`, without reading any clip.

    Args:
        rows: The rows.
        data: A recipe's clips and buckets, which limits are measured on; by default, all readable clips in the proposed
            buckets.
        needs: What captions are for.
    """
    good = rows.take(rows.readable)
    video = good.is_video
    by_folder = data_advice.clips_by_folder(good.take(~video)).most_common()
    chosen = np.unique(np.linspace(0, len(good) - 1, min(_POINTS, len(good))).astype(np.int64))
    proposal = propose.of_rows(rows)
    counted = Counted.of_rows(rows, proposal) if data is None else Counted.of_recipe(data)
    return Inspection(
        summary=summarise(rows),
        duration=_histogram(good.duration_seconds[video], _SECONDS, "{:g}"),
        caption_tokens=_histogram(_caption_tokens(good), _TOKENS, "{:d}"),
        pictures_by_folder=by_folder[:_FOLDERS],
        folders=len(by_folder),
        sizes=list(zip(good.width[chosen].tolist(), good.height[chosen].tolist(), strict=True)),
        advice=[*data_advice.advise(rows), *caption_advice.advise(rows, needs)],
        proposal=proposal,
        columns=columns.columns(counted),
        counted=counted,
    )


def _histogram(values: NDArray[Any], edges: tuple[Any, ...], number: str) -> Histogram:
    """Count values in classes, each from its lower edge up to the next class's edge (exclusive)."""
    integer = isinstance(edges[0], int)
    labels = [f"{number.format(a)}–{number.format(b - 1 if integer else b)}" for a, b in pairwise(edges)]
    labels.append(f"{number.format(edges[-1])} and more")
    return classes(values, (0, *edges), ["none", *labels]) if integer else classes(values, edges, labels)


def _caption_tokens(rows: CatalogRows) -> NDArray[np.int64]:
    captions = pc.value_counts(rows.caption.drop_null())
    lengths = [data_advice.count_tokens(text) for text in captions.field("values").to_pylist()]
    return np.repeat(np.array(lengths, dtype=np.int64), captions.field("counts").to_numpy())


def write_inspection(inspection: Inspection, catalog: Path, file: Path) -> None:
    """Write an inspection as one HTML file, with a picture of a clip at each percentile."""
    shown = [one.row for column in inspection.columns for one in column.percentiles]
    text = page.render(
        "inspect.html",
        figures=figures(inspection),
        name=catalog.resolve().name,
        path=catalog,
        headline=headline(inspection),
        inspection=inspection,
        pictures=columns.thumbnails(inspection.counted.rows, shown),
    )
    files.write_for("--html", file, text.encode())


def headline(inspection: Inspection) -> list[Fact]:
    """Return the cards on top of the page."""
    s = inspection.summary
    kinds = ", ".join(units.plural(count, kind) for kind, count in s.by_kind)
    captions = f"{units.count(s.captions_missing)} missing, {units.count(s.captions_empty)} empty"
    captioned = sum(count for _, count in s.by_kind) - s.captions_missing - s.captions_empty
    return [
        Fact("Clips", units.count(s.clips), kinds),
        Fact("Captioned", units.count(captioned), captions),
        Fact("Unreadable", units.count(s.bad), ""),
        Fact("Footage", units.duration(s.duration_seconds), units.size(s.size_bytes)),
        *([Fact("With sound", units.count(s.with_sound), "videos")] if s.with_sound else []),
    ]


def figures(inspection: Inspection) -> list[Figure]:
    """Return a bar plot of each distribution, and a scatter plot of the sizes."""
    drawn = [_bars(i, title, unit, histogram) for i, (title, unit, histogram) in enumerate(inspection.histograms)]
    if not inspection.sizes:
        return drawn
    width, height = zip(*inspection.sizes, strict=True)
    marker = {"color": "@c1", "size": 8, "opacity": 0.45}
    points = {"type": "scatter", "mode": "markers", "x": list(width), "y": list(height), "marker": marker}
    sides = {"xaxis": "width, pixels", "yaxis": "height, pixels"}
    axes = {axis: {"title": {"text": unit}, "type": "log"} for axis, unit in sides.items()}
    plot = {"data": [points], "layout": {**axes, "hovermode": "closest"}}
    return [*drawn, Figure("sizes", "Sizes", f"{units.plural(len(width), 'clip')} as displayed.", plot)]


def _bars(index: int, title: str, unit: str, histogram: Histogram) -> Figure:
    labels, counts = zip(*histogram, strict=True)
    marker = {"color": f"@c{index % 8 + 1}"}
    bars = {"type": "bar", "name": "clips", "x": list(labels), "y": list(counts), "marker": marker}
    axes = {"xaxis": {"title": {"text": unit}, "type": "category"}, "yaxis": {"title": {"text": "clips"}}}
    return Figure(title.replace(" ", "-"), title.capitalize(), "", {"data": [bars], "layout": axes})
