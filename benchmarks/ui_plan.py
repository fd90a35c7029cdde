"""Time from a moved control of the page's plan to the new plan, through HTTP, on a made-up catalog.

`python -m benchmarks.ui_plan --json` prints as its last line what was seen: the median and the longest milliseconds of
requests that move batch sizes, probabilities, the number of GPUs and the way with incomplete batches, each to a
position that it did not have before. The catalog is the synthetic one of `_weblike.py`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks import _catalogs
from benchmarks._page import Page, serving
from benchmarks._results import AT_START
from reelworks.core import files

Json = dict[str, Any]
RECIPE = """version = 1
output = "run"
[[dataset]]
path = "/data/web"
[[bucket]]
resolution = "256px"
num_frames = [1, 17, 33, 65]
batch_size = [64, 16, 8, 4]
[[bucket]]
resolution = "360p"
num_frames = [1, 33, 65]
batch_size = [32, 4, 2]
keep_prob = 0.5
[[bucket]]
resolution = "720p"
num_frames = [1, 33]
batch_size = [8, 1]
keep_prob = 0.3
[train]
max_steps = 1000
"""


def moves(controls: Json, count: int) -> Iterator[tuple[str, Json]]:
    """Yield the kind of each movement and the positions after it."""
    now = controls
    for i in range(count):
        kind = ("batch_size", "keep_prob", "world", "incomplete_batch")[i % 4]
        if kind == "batch_size":
            sizes = list(now["batch_sizes"])
            sizes[i % len(sizes)] += 1 + i // 4 % 3
            now = now | {"batch_sizes": sizes}
        elif kind == "keep_prob":
            chances = list(now["keep_probs"])
            chances[i % len(chances)] = round(0.95 - 0.01 * i % 0.5, 3)
            now = now | {"keep_probs": chances}
        elif kind == "world":
            now = now | {"world": 1 + i % 16}
        else:
            now = now | {"incomplete_batch": ("pad", "merge", "repeat", "partial")[i // 4 % 4]}
        yield kind, now


def measure(clips: int, count: int) -> Json:
    """Move controls and return the milliseconds of the requests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _catalogs.make(folder / "run" / "catalog", clips)
        (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
        with serving(folder) as (port, _):
            page = Page(port)
            (key,) = [row["key"] for row in page.get("/api/plan")]
            began = time.perf_counter()
            controls = page.get(f"/api/plan/{key}")["controls"]
            page.get(f"/api/plan/{key}/outline?controls={quote(json.dumps(controls))}")
            first = time.perf_counter() - began
            milliseconds: dict[str, list[float]] = {}
            for kind, position in moves(controls, count):
                seconds, plan = page.timed(f"/api/plan/{key}/outline?controls={quote(json.dumps(position))}")
                milliseconds.setdefault(kind, []).append(1000 * seconds)
                assert plan["steps_per_epoch"] > 0
    every = [one for of_kind in milliseconds.values() for one in of_kind]
    return {
        "clips": clips,
        "moves": count,
        "first_seconds": round(first, 2),
        "median_ms": round(statistics.median(every), 1),
        "worst_ms": round(max(every), 1),
        "median_ms_by_kind": {kind: round(statistics.median(some), 1) for kind, some in milliseconds.items()},
        "machine": platform.node(),
        **AT_START,
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    seen = measure(arguments.clips, arguments.moves)
    print(files.to_json(seen, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
