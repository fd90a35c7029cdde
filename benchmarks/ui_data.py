"""The data page on a catalog of a million clips: seconds until it is read, to its first paint, for each filter and limit.

`python -m benchmarks.ui_data --clips 1000000 --json` prints as its last line what was seen. A catalog of synthetic clips
(`_catalogs.py`) and a recipe are written, `reelworks ui` is started in a process of its own, and everything is asked through
HTTP, as the page does. The first paint is what the page asks for before it draws: its files, the facts of the recipe, and
the first clips. A run of one epoch with made-up losses of every clip shows *Learning*. Every other request is made for the first time, so that no answer is a kept one. The clips' files do not
exist. Seconds depend on what else the machine does (see `load_average`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import psutil

from benchmarks import _catalogs
from benchmarks._page import Page, serving
from benchmarks._results import AT_START, keep
from benchmarks.schedule import machine_name
from reelworks.annexes import page as ui
from reelworks.annexes.learning import losses
from reelworks.annexes.learning.losses import ClipLosses, LossesAbout
from reelworks.data.checkpoint import save
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.loader import position as positions
from reelworks.data.loader import segment_record
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData

Json = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "ui_data.json"
_STATIC = Path(ui.__file__).parent / "static"
# All that the page is made of; the data page loads fewer.
_PARTS = [
    f"/static/{path.relative_to(_STATIC).as_posix()}" for kind in ("*.css", "*.js") for path in _STATIC.rglob(kind)
]
_RECIPE = """version = 1
[[dataset]]
path = "/data/web"
[[bucket]]
resolution = "240p"
num_frames = [1, 17, 51]
batch_size = [8, 4, 2]
keep_prob = [1.0, 0.8, 0.5]
[[bucket]]
resolution = "480p"
num_frames = [1, 17, 51]
batch_size = [8, 4, 2]
[model]
name = "stdit3-tiny"
[train]
max_steps = 1000
"""
_FILTERS: dict[str, list[tuple[str, str]]] = {
    "reason": [("reason", "planned")],
    "several": [("reason", "planned"), ("kind", "video"), ("reason", "too_small")],
    "most cropped": [("sort", "cropped")],
    "longest": [("sort", "longest")],
    "a rare text": [("q", "mountain 77")],
    "a text of half of the clips": [("q", "Dog")],
    "one letter": [("q", "e")],
    "text and filter": [("q", "river"), ("reason", "planned"), ("sort", "largest")],
}

_LEARNING = {
    "first": "sort=worst",
    "again": "sort=worst",
    "more": "sort=worst&limit=120",
    "a word": "sort=worst&word=learnt",
    "by loss": "sort=loss",
    "by name": "sort=path",
    "by name again": "sort=path&limit=120",
}


def measure(clips: int) -> Json:
    """Everything for so many clips."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        catalog = folder / "web.catalog"
        _catalogs.make(catalog, clips)
        recipe = folder / "web.toml"
        recipe.write_text(f'output = "{folder}/run"\ncatalog = "{catalog}"\n{_RECIPE}', encoding="utf-8")
        _learn(recipe)
        with serving(folder) as (port, process):
            return _asked(Page(port), process, clips)


def _learn(recipe_path: Path) -> None:
    """Leave a run of the recipe that has trained an epoch, in whose checkpoint each clip has a loss."""
    recipe = recipe_file.load(recipe_path)
    run = RunFolder(Path(recipe.output))
    run.create(1)
    name = run.keep_recipe(recipe_file.dump(recipe))
    data = RecipeData.open(recipe)
    position = positions.begin_epoch(data, data.plan_spec(1, 1), epoch=0)
    segment_record.begin(run, data, position, name)
    uid = np.sort(data.rows.uid)
    rng = np.random.default_rng(0)
    first, longer, recent = rng.normal(0, 0.2, (3, len(uid))).astype(np.float32)
    table = ClipLosses.empty(LossesAbout(step=100, buckets=("240p",)), len(uid))
    table = replace(table, key=uid, shown=np.full(len(uid), 5, np.int32), first=first, longer=longer, recent=recent)
    save.save(CheckpointFolder(run.checkpoints_folder), 100, {"model": {}}, extra={losses.FILE: table.to_bytes()})


def _asked(page: Page, process: int, clips: int) -> Json:
    began = time.perf_counter()
    key = next(row["key"] for row in page.get("/api/data") if row["kind"] == "recipe")
    listed_s = time.perf_counter() - began
    slowest = 0.0
    state: Json = {"state": "opening"}
    while state["state"] == "opening":
        time.sleep(0.2)
        seconds, state = page.timed(f"/api/data/{key}")
        slowest = max(slowest, seconds)
    assert state["state"] == "ready", state
    read_s = time.perf_counter() - began
    paint_s = _first_paint(page, key)
    sums = {sum(facet["counts"]) for facet in state["facets"]}
    assert sums == {clips}, sums
    filters, cpu = {}, {}
    for name, query in _FILTERS.items():
        before = _cpu_seconds(process)
        filters[name] = _filtered(page, key, query)
        cpu[name] = _cpu_seconds(process) - before
    pages = [
        page.timed(f"/api/data/{key}/clips?sort=name&offset={at}&limit=120")[0] for at in range(0, clips, clips // 20)
    ]
    distributions_s, _ = page.timed(f"/api/data/{key}/distributions?sort=name")
    columns_s, columns = page.timed(f"/api/data/{key}/columns?dataset=web")
    limits = [seconds for column in columns for seconds in _moved(page, key, column)]
    run = next(row["key"] for row in page.get("/api/runs"))
    learning = {name: page.timed(f"/api/runs/{run}/learning?{query}")[0] for name, query in _LEARNING.items()}
    return {
        "clips": clips,
        "machine": machine_name(),
        **AT_START,
        "listed_s": listed_s,
        "read_s": read_s,
        "slowest_answer_while_reading_s": slowest,
        "first_paint_s": paint_s,
        "filter_s": filters,
        "filter_cpu_s": cpu,
        "worst_filter_s": max(filters.values()),
        "page_of_clips_s": statistics.median(pages),
        "distributions_s": distributions_s,
        "columns_s": columns_s,
        "limit_s": statistics.median(limits),
        "worst_limit_s": max(limits),
        "learning_s": learning,
        "server_peak_gb": _status(process, "VmHWM") / 1e9,
        "server_gb": _status(process, "VmRSS") / 1e9,
    }


def _first_paint(page: Page, key: str) -> float:
    began = time.perf_counter()
    for path in ("/", "/report.css", *_PARTS):
        page.get(path)
    page.get(f"/api/data/{key}")
    page.get(f"/api/data/{key}/clips?sort=name&offset=0&limit=120")
    return time.perf_counter() - began


def _filtered(page: Page, key: str, query: list[tuple[str, str]]) -> float:
    seconds, _ = page.timed(f"/api/data/{key}/clips?{urlencode([*query, ('offset', '0'), ('limit', '120')])}")
    return seconds


def _moved(page: Page, key: str, column: Json) -> list[float]:
    """Return the seconds of the answers while both limits of a column move, beside a limit on another one."""
    seconds = []
    for i in range(1, 11):
        step = (column["high"] - column["low"]) * i / 40
        limit = f"{column['name']}:{column['low'] + step}:{column['high'] - step}"
        query = urlencode([("dataset", "web"), ("limit", limit), ("limit", "width:300:"), ("moved", column["name"])])
        seconds.append(page.timed(f"/api/data/{key}/limits?{query}")[0])
    return seconds


def _cpu_seconds(process: int) -> float:
    """Return the processor time of the server, which depends less on what else the machine does."""
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def _status(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def show(result: Json) -> None:
    """Print the figures for people."""
    print(f"{result['clips']:,} clips on {result['machine']}, load {result['load_average']:.1f}")
    print(f"read in {result['read_s']:.1f} s; first paint then {result['first_paint_s']:.2f} s")
    print("filters: " + ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in result["filter_s"].items()))
    print(f"a page of clips {1000 * result['page_of_clips_s']:.0f} ms, distributions {result['distributions_s']:.2f} s")
    print(
        f"columns {result['columns_s']:.2f} s, a moved limit {1000 * result['limit_s']:.0f} ms, "
        f"{1000 * result['worst_limit_s']:.0f} ms at most"
    )
    print("learning: " + ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in result["learning_s"].items()))
    print(f"memory of the server {result['server_gb']:.2f} GB, {result['server_peak_gb']:.2f} GB at most")


def main() -> None:
    """Measure, print, and keep the result if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print one JSON value as the last line")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    result = measure(options.clips)
    show(result)
    if options.save:
        keep(RESULTS, result)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
