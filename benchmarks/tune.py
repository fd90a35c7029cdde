"""How well `reelworks tune` predicts: `python -m benchmarks.tune --json`.

Measures a small network at several resolutions, lengths and batch sizes on this machine's device. `held_out_error` is
the largest relative error of a time that is predicted from those of all other token counts, the smallest and largest
of them left out, since plans interpolate between the entries of a recipe. All is measured several times over, and the
median of a time counts: shared machines are slower or faster for a minute, which is no property of a shape.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks._results import keep
from reelworks.data.schedule import cost_fit
from reelworks.data.schedule.cost_fit import Timing
from reelworks.training.memory import tune, workbench
from reelworks.training.memory.search import Limits, Trial
from reelworks.training.recipe import dataset, recipe_file

RESULTS = Path(__file__).parent / "results" / "tune.json"
_RECIPE: dict[str, Any] = {
    "version": 1,
    "output": "unused",
    "dataset": [{"path": "unused"}],
    "bucket": [
        {"resolution": "128px", "num_frames": [1, 5, 9, 17]},
        {"resolution": "192px", "num_frames": [1, 9, 17]},
        {"resolution": "256px", "num_frames": [1, 5]},
    ],
    "buckets": {"aspect_ratios": ["16:9", "1:1"]},
    "model": {"name": "stdit3-tiny", "hidden_size": 192, "depth": 4, "num_heads": 4},
    "precision": {"compute": "float32"},  # many processors compute bfloat16 by other, slower ways for some shapes
    "train": {"max_steps": 1},
}


def measure(most_clips: int, passes: int) -> dict[str, Any]:
    """Return the figures, with the times of all trials."""
    recipe = recipe_file.parse(_RECIPE)
    _, table = dataset.bucket_table(recipe)
    limits = Limits(workbench.device_bytes(), None, most_clips)
    found = [tune.measure(recipe, table, limits, _ignore) for _ in range(passes)]
    times: dict[tuple[int, int], list[float]] = {}
    for trial in (trial for one in found for trial in one.trials):
        times.setdefault((trial.tokens, trial.batch_size), []).append(trial.milliseconds)
    timings = [Timing(*at, statistics.median(of_passes)) for at, of_passes in times.items()]
    errors = cost_fit.held_out_errors(timings)
    return {
        "device": found[0].origin.device,
        "held_out_error": max(abs(errors[tokens]) for tokens in sorted(errors)[1:-1]),
        "held_out_errors": {str(tokens): round(error, 4) for tokens, error in errors.items()},
        "residual": max(map(abs, cost_fit.fit(timings).residuals(timings))),
        "held_out_error_of_passes": [
            max(abs(one.held_out_errors[tokens]) for tokens in sorted(one.held_out_errors)[1:-1]) for one in found
        ],
        "batch_sizes": found[0].batch_sizes,
    }


def _ignore(_: Trial | str) -> None:
    pass


def main() -> None:
    """Measure, and print or save the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most-clips", type=int, default=4)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    figures = measure(options.most_clips, options.passes)
    if options.save:
        keep(RESULTS, figures)
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
