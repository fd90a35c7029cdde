"""Whether the advice of `eval --checkpoints` comes before a model copies: `python -m benchmarks.best_checkpoint [--json] [--save]`.

For each seed, a small model is trained on few pictures of one subject, far beyond the step at which it begins to copy them.
All checkpoints are measured by `reelworks eval RUN --checkpoints all`, without weights of networks. `before_copy` is the number of
seeds in which the advised step has no clip that counts as copied, `copied_at_end` the least number, over the seeds, of clips of
eight that do at the last step, and `height` the least likeness of the advised step, as a share of the highest of its run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from PIL import Image, ImageDraw

from benchmarks._results import keep

RESULTS = Path(__file__).parent / "results" / "best_checkpoint.json"
SIDE, PICTURES, STEPS, EVERY = 48, 16, 300, 25
PLACES = {"sand": (214, 190, 140), "grass": (96, 160, 72), "stone": (120, 120, 128), "night": (28, 30, 52)}
COPIED = 1.0
METRICS = ("likeness-pixels", "closeness-pixels")


def draw(generator: np.random.Generator, place: str, file: Path) -> None:
    """Draw a mug, of one shape and colours, of any size and place, before clutter in the colours of a place."""
    image = Image.new("RGB", (4 * SIDE, 4 * SIDE), PLACES[place])
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = generator.integers(0, 4 * SIDE, 2).tolist()
        w, h = generator.integers(SIDE // 2, 2 * SIDE, 2).tolist()
        shade = np.clip(np.array(PLACES[place]) + generator.integers(-40, 41, 3), 0, 255).tolist()
        pen.ellipse((x - w // 2, y - h // 2, x + w // 2, y + h // 2), fill=tuple(shade))
    size = int(generator.integers(SIDE, 2 * SIDE))
    left, top = (int(v) for v in generator.integers(SIDE // 4, 4 * SIDE - int(1.6 * size), 2))
    pen.ellipse(
        (left + size * 0.7, top + size * 0.25, left + size * 1.35, top + size * 0.85),
        outline=(190, 30, 40),
        width=size // 7,
    )
    pen.rectangle((left, top, left + size, top + int(1.2 * size)), fill=(220, 40, 50))
    pen.rectangle((left, top + size // 3, left + size, top + size // 2), fill=(245, 240, 220))
    image.resize((SIDE, SIDE), Image.Resampling.BOX).save(file)
    file.with_suffix(".txt").write_text(f"a mug on {place}", encoding="utf-8")


def recipe(folder: Path, seed: int) -> dict[str, Any]:
    """Return the recipe of the training."""
    places = list(PLACES)
    prompts = [f"a mug on {place}" for place in places]
    prompts += [f"a mug on {place} and {other}" for place, other in zip(places, places[1:] + places[:1], strict=True)]
    return {
        "version": 1,
        "output": str(folder / "run"),
        "seed": seed,
        "dataset": [{"path": str(folder / "mugs")}],
        "bucket": [{"resolution": f"{SIDE}px", "num_frames": 1, "batch_size": 16}],
        "buckets": {"aspect_ratios": ["1:1"], "incomplete_batch": "pad"},
        "data": {"num_workers": 0},
        "model": {"name": "stdit3-tiny-1", "hidden_size": 192, "depth": 3, "num_heads": 6},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 32, "max_length": 8},
        "objective": {"prediction": "sample", "timestep_shift": 3.0},
        "precision": {"compute": "float32"},
        "train": {
            "max_steps": STEPS,
            "optimizer": "muon",
            "learning_rate": 2e-3,
            "warmup_steps": 20,
            "ema_decay": 0.98,
            "threads": 1,
        },
        "validation": {"split": 0.25, "every_steps": EVERY, "timesteps": [300.0, 500.0, 700.0, 900.0]},
        "samples": {"prompts": prompts, "num_inference_steps": 20, "guidance_scale": 1.0, "num_frames": 1},
        "checkpoints": {"every_steps": EVERY, "keep_last": 99},
    }


def reelworks(*words: object) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "reelworks", *map(str, words)], capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        raise SystemExit(f"reelworks {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def run(seed: int, folder: Path) -> dict[str, Any]:
    """Train and measure with a seed; returns the advice, and what holds at its step and at the last one."""
    generator = np.random.default_rng(seed)
    (folder / "mugs").mkdir()
    for i in range(PICTURES):
        draw(generator, list(PLACES)[i % len(PLACES)], folder / "mugs" / f"{i:02d}.png")
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe(folder, seed)), encoding="utf-8")
    began = time.monotonic()
    reelworks("train", folder / "recipe.toml")
    trained = time.monotonic()
    words = [word for name in METRICS for word in ("--metric", name)]
    page = folder / "grid.html"
    series = json.loads(
        reelworks("eval", folder / "run", "--checkpoints", "all", *words, "--timesteps", 0, "--html", page, "--json")
    )
    points = [_point(one) for one in series["checkpoints"]]
    by_step = {point["step"]: point for point in points}
    use = None if series["advice"] is None else series["advice"]["step"]
    highest = max(point["likeness"] for point in points)
    return {
        "advised": use,
        "copied_at_advice": None if use is None else by_step[use]["copied"],
        "copied_at_end": points[-1]["copied"],
        "height": None if use is None else by_step[use]["likeness"] / highest,
        "train_seconds": trained - began,
        "measure_seconds": time.monotonic() - trained,
        "points": points,
    }


def _point(one: dict[str, Any]) -> dict[str, Any]:
    found = {metric["name"]: metric for metric in one["metrics"]}
    likeness, closeness = (found[name] for name in METRICS)
    copied = sum(value > COPIED for value in closeness["by_clip"].values())
    values = {"likeness": likeness["value"], "closeness": closeness["value"], "loss": one["loss"]}
    return {"step": one["step"], **values, "copied": copied}


def main() -> None:
    """Measure, and print one object or some lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    runs: dict[str, dict[str, Any]] = {}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.folder or Path(temporary)) / f"seed-{seed}"
            folder.mkdir(parents=True)
            found = runs[str(seed)] = run(seed, folder)
        if not options.json:
            for point in found["points"]:
                print("  " + "  ".join(f"{name} {value:.4g}" for name, value in point.items()))
            print(
                f"seed {seed}: use step {found['advised']}, copied {found['copied_at_advice']} there, {found['copied_at_end']} at the end",
                flush=True,
            )
    advised = [one for one in runs.values() if one["advised"] is not None]
    figures = {
        "seeds": len(runs),
        "advised": len(advised),
        "before_copy": sum(one["copied_at_advice"] == 0 for one in advised),
        "copied_at_end": min(one["copied_at_end"] for one in runs.values()),
        "height": min((one["height"] for one in advised), default=None),
    }
    if options.save:
        keep(RESULTS, {**figures, "runs": runs})
    print(json.dumps(figures) if options.json else figures)


if __name__ == "__main__":
    main()
