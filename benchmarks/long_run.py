"""Whether a long training stays as small as it began: `python -m benchmarks.long_run --json`.

Trains a network whose steps take some milliseconds for 50,000 steps, on pictures in memory, with saves, validation and
many epochs. After a tenth of the steps and then at equal distances, memory, open files and threads are noted.
`rss_growth_mb` is the growth of this process's memory from the median of the first half of these notes to that of the
last quarter, `handles_growth` and `threads_growth` compare the most in both halves (an epoch's plan is a few open files). `files` counts the files of the
run folder: epochs have a record each, and `coverage.max_disk` bounds their sum; `events.jsonl` and the curves of
TensorBoard grow by some hundred bytes a step, which `event_bytes_per_step` and `curve_bytes_per_step` tell.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks import _pictures
from benchmarks._results import AT_START, keep
from reelworks.core import log
from reelworks.training.loop.request import TrainRequest
from reelworks.training.loop.trainer import run
from reelworks.training.recipe import recipe_file

RESULTS = Path(__file__).parent / "results" / "long_run.json"
PICTURES = 200
NOTES = 40


class Watcher(logging.Handler):
    """Note memory, open files and threads at some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__(logging.DEBUG)
        self._first, self._every = steps // 10, max((steps - steps // 10) // NOTES, 1)
        self._process = psutil.Process()
        self.notes: list[dict[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note the state at the event of a step, if it is time."""
        if record.__dict__["kind"] != "step":
            return
        step = record.__dict__["fields"]["step"]
        if step < self._first or (step - self._first) % self._every:
            return
        self.notes.append(
            {
                "step": step,
                "rss_mb": round(self._process.memory_info().rss / 1e6, 1),
                "handles": self._process.num_fds(),
                "threads": self._process.num_threads(),
                "time": time.perf_counter(),
            }
        )


def measure(steps: int) -> dict[str, Any]:
    """Return the figures of a training of so many steps."""
    with tempfile.TemporaryDirectory() as folder, _pictures.in_memory():
        _pictures.write(Path(folder) / "pictures", PICTURES)
        small = _pictures.recipe(Path(folder), steps, hidden_size=32, depth=1)
        small["validation"] = {"split": 0.02, "every_steps": max(steps // 20, 1)}
        small["checkpoints"] = {"every_steps": max(steps // 50, 1), "keep_last": 3}
        watcher = Watcher(steps)
        log.event_logger.addHandler(watcher)
        log.event_logger.setLevel(logging.DEBUG)
        try:
            run(recipe_file.parse(small), TrainRequest())
        finally:
            log.event_logger.removeHandler(watcher)
        return _figures(steps, watcher.notes, Path(folder) / "run")


def most(what: str, notes: list[dict[str, float]]) -> float:
    """Return the largest of some noted values."""
    return max(note[what] for note in notes)


def _figures(steps: int, notes: list[dict[str, float]], folder: Path) -> dict[str, Any]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    sizes = Counter({path.relative_to(folder).parts[0]: 0 for path in files})
    for path in files:
        sizes[path.relative_to(folder).parts[0]] += path.stat().st_size
    rss = [note["rss_mb"] for note in notes]
    half = len(notes) // 2
    early, late = (
        (b["time"] - a["time"]) / (b["step"] - a["step"])
        for a, b in ((notes[0], notes[len(notes) // 4]), (notes[-1 - len(notes) // 4], notes[-1]))
    )
    return {
        "steps": steps,
        "rss_mb": rss[-1],
        "rss_growth_mb": round(statistics.median(rss[-len(rss) // 4 :]) - statistics.median(rss[: len(rss) // 2]), 1),
        "handles_growth": most("handles", notes[half:]) - most("handles", notes[:half]),
        "threads_growth": most("threads", notes[half:]) - most("threads", notes[:half]),
        "files": len(files),
        "files_by_folder": dict(Counter(path.relative_to(folder).parts[0] for path in files)),
        "bytes_by_folder": dict(sizes),
        "event_bytes_per_step": round(sizes["events.jsonl"] / steps),
        "curve_bytes_per_step": round(sizes["tensorboard"] / steps),
        "early_step_ms": round(1000 * early, 2),
        "late_step_ms": round(1000 * late, 2),
        "rss_mb_over_time": rss,
        **AT_START,
    }


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    figures = measure(options.steps)
    if options.save:
        keep(RESULTS, figures)
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
