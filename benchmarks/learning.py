"""Whether planted faults are named: `python -m benchmarks.learning [--json] [--save] [--only SET] [--seeds N...]`.

Pictures are made of photographs (`_planted.py`) with faults: wrong and swapped captions, another subject, black frames, ten
near-duplicates of one picture, and one that is trained sixty times as often as the others. For each seed a small network is
trained on 400 of them from random weights (`clips`), and a LoRA on 40 of a subject that its base, trained on 4,000 good ones,
has never seen (`lora`); both with `clip_losses = "auto"`, and both again without any fault (`good_clips`, `good_lora`). A clip is
named if `reelworks learning` gives it a word to look at, or if `reelworks inspect`, after `reelworks measure`, lists it as
black or as a copy of another one. Per set:

`precision`: share of the words of `reelworks learning` that are of planted faults, least of the seeds; null without a word.
`first`: share of the planted faults that a loss can tell of, all but near-duplicates, that are among the first tenth of 400 and
the first ten of 40 clips as `reelworks learning` ranks them, least of the seeds.
`named`: share of the planted faults that were trained and are named, least of the seeds; of near-duplicates, one may stay.
`named_by_kind`: the mean of the seeds for each kind.
`words`: good clips with a word, most of the seeds; of a set without faults, any word is wrong.
`false`: share of the good clips that are named, `inspect` included, largest of the seeds.
`cost`: share of the run's time that measuring clips takes, largest of the seeds.
`seeds`: the same of each.
`equal_after_kill`: the account of a run that is killed at random equals that of the same run without a kill, to the bit.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks import _planted
from benchmarks._results import keep
from reelworks.annexes.learning import losses
from reelworks.data.checkpoint import verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events

RESULTS = Path(__file__).parent / "results" / "learning.json"
SETS = ("clips", "lora", "good_clips", "good_lora")
FIRST = {"clips": 40, "lora": 10}  # clips that the order begins with
SIDE = 24  # of training, in px
TO_LOOK_AT = ("not_learnt", "caption_without_effect", "memorised")
CONTENT = ("duplicates", "near_duplicates", "black")  # advice about what a clip shows
Recipe = dict[str, Any]


def recipe(folder: Path, steps: int, *, batch_size: int, clip_losses: str | int, **changes: Any) -> Recipe:
    """Return the recipe of a small network on the pictures of a folder."""
    often = {"path": str(folder / "often"), "name": "often", "repeats": _planted.MEMORISED}
    values: Recipe = {
        "version": 1,
        "output": str(folder / "run"),
        "seed": 7,
        "dataset": [
            {"path": str(folder / "usual"), "name": "usual"},
            *([often] if (folder / "often").exists() else []),
        ],
        "bucket": [{"resolution": f"{SIDE}x{SIDE}", "num_frames": 1, "batch_size": batch_size}],
        "buckets": {"upscale": True},
        "data": {"num_workers": 0},
        "model": {"name": "stdit3-tiny-1", "hidden_size": 96, "depth": 2, "num_heads": 4},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 64, "max_length": 16},
        "encode": {"store": True},
        "objective": {"timestep_shift": "none"},
        "precision": {"compute": "float32"},
        "train": {
            "max_steps": steps,
            "learning_rate": 2e-3,
            "warmup_steps": 20,
            "threads": 1,
            "clip_losses": clip_losses,
        },
        "validation": {"split": 0.05, "every_steps": "none"},
        "checkpoints": {"every_steps": 200, "keep_last": 1},
    }
    return {**values, **{key: {**values.get(key, {}), **table} for key, table in changes.items()}}


def reelworks(*words: object) -> str:
    """Run a command, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "reelworks", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with code {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def train(folder: Path, values: Recipe) -> None:
    """Train a recipe to its end."""
    (folder / "recipe.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
    reelworks("train", folder / "recipe.toml")


def base_of(folder: Path, steps: int) -> Path:
    """Train a base on good pictures, and return its weights."""
    _planted.write(folder, _planted.draw(4000, {}, seed=1000), seed=1000)
    falling = {"learning_rate_schedule": "cosine"}
    train(folder, recipe(folder, steps, batch_size=32, clip_losses="off", train=falling))
    reelworks("checkpoints", "export", folder / "run", "-o", folder / "base.safetensors", "--dtype", "float32")
    return folder / "base.safetensors"


def of_clips(folder: Path, seed: int, steps: int, planted: dict[str, int]) -> tuple[dict[str, str], Recipe]:
    """Write clips with faults; return the fault of each and the recipe that trains on them."""
    faults = _planted.write(folder, _planted.draw(400, planted, seed=seed), seed=seed)
    return faults, recipe(folder, steps, batch_size=32, clip_losses="auto")


def of_lora(folder: Path, seed: int, steps: int, planted: dict[str, int], base: Path) -> tuple[dict[str, str], Recipe]:
    """Write pictures of a subject with faults; return the fault of each and the recipe of a LoRA on them."""
    drawn = _planted.draw(40, planted, seed=seed, subject=True)
    faults = _planted.write(folder, drawn, seed=seed)
    values = recipe(
        folder,
        steps,
        batch_size=4,
        clip_losses="auto",
        model={"weights": str(base)},
        lora={"rank": 16, "targets": "blocks"},
        train={"learning_rate": 1e-3},
        validation={"split": 0.0},
    )
    return faults, values


def inspected(folder: Path) -> set[str]:
    """Return the clips of a set, by "dataset/path", that are black or copies of another one by their pictures."""
    reelworks(
        "scan", *(path for name in ("usual", "often") if (path := folder / name).exists()), "-o", folder / "catalog"
    )
    reelworks("measure", folder / "catalog", "--only", "exposure", "--only", "duplicates")
    advice = json.loads(reelworks("inspect", folder / "catalog", "--json"))["advice"]
    return {path for each in advice if each["name"] in CONTENT for path in each["files"]}


def judge(folder: Path, faults: dict[str, str], first: int) -> dict[str, Any]:
    """Return the shares of faults and of good clips that are named, and the cost."""
    clips = json.loads(reelworks("learning", folder / "run", "--json"))["clips"]
    fault = {clip["path"]: faults[clip["path"]] for clip in clips}
    worded = [path for clip in clips if clip["word"] in TO_LOOK_AT and (path := clip["path"])]
    named, by_kind = {*worded} | inspected(folder), defaultdict(list)
    for path, kind in fault.items():
        by_kind[kind].append(path in named)
    if False in by_kind["duplicate"]:
        by_kind["duplicate"].remove(False)  # the best one is no fault
    good = by_kind.pop("")
    of_faults = [seen for each in by_kind.values() for seen in each]
    told = [kind not in ("", "duplicate") for kind in fault.values()]  # in their order
    return {
        "precision": _share([bool(fault[path]) for path in worded]),
        "first": sum(told[:first]) / sum(told) if any(told) else None,
        "named": _share(of_faults),
        "words": sum(not fault[path] for path in worded),
        "false": sum(good) / len(good),
        "cost": cost(folder),
        "named_by_kind": {kind: sum(each) / len(each) for kind, each in by_kind.items() if each},
    }


def _share(seen: list[bool]) -> float | None:
    return sum(seen) / len(seen) if seen else None


def cost(folder: Path) -> float:
    """Return the share of a run's time that measurements took; noting losses is part of steps, and timed by itself."""
    seconds = {"step": 0.0, "clip_losses": 0.0}
    for event in events.read(folder / "run" / "events.jsonl", *seconds):
        seconds[event["kind"]] += event["seconds"]
    return seconds["clip_losses"] / sum(seconds.values())


def equal_after_kill(folder: Path, steps: int, kills: int) -> bool:
    """Return whether a run that is killed at random ends with the account of one that is not."""
    _planted.write(folder, _planted.draw(30, {}, seed=5), seed=5)
    found = []
    for name in ("calm", "killed"):
        values = recipe(folder, steps, batch_size=4, clip_losses=8, checkpoints={"every_steps": 10, "keep_last": 2})
        values |= {"output": str(folder / name), "train": values["train"] | {"clip_losses_every": 7}}
        file = folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(values), encoding="utf-8")
        chance = random.Random(3)
        for _ in range(kills if name == "killed" else 0):
            _kill_behind(chance.randint(11, steps - 2), folder / name, file)
        reelworks("train", file)
        newest = CheckpointFolder(folder / name / "checkpoints").list()[-1]
        found.append(verify.read_extra(newest.path, losses.FILE))
    return found[0] == found[1]


def _kill_behind(step: int, run: Path, file: Path) -> None:
    """Train until a step is told, and kill the process."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", "reelworks", "train", str(file)], **quiet)
    while process.poll() is None:
        told = [e["step"] for e in events.timeline(run / "events.jsonl", "step")] if run.exists() else []
        if told and told[-1] >= step:
            process.kill()
        time.sleep(0.02)
    process.wait()


def run(
    only: str | None, seeds: list[int], *, steps: int, lora_steps: int, base_steps: int, jobs: int, quiet: bool
) -> dict[str, Any]:
    """Train and judge all sets, so many at once, and return the figures."""
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(jobs) as pool:
        root = Path(place)
        base = pool.submit(base_of, root / "base", base_steps) if only is None or "lora" in only else None

        def judged(name: str, seed: int) -> dict[str, Any]:
            folder = root / f"{name}-{seed}"
            is_good, of = name.startswith("good_"), name.removeprefix("good_")
            if base is not None and of == "lora":
                planted = {} if is_good else _planted.PICTURES
                faults, values = of_lora(folder, seed, lora_steps, planted, base.result())
            else:
                faults, values = of_clips(folder, seed, steps, {} if is_good else _planted.CLIPS)
            train(folder, values)
            found = judge(folder, faults, FIRST[of])
            if not quiet:
                print(f"{name}, seed {seed}: {found}", flush=True)
            shutil.rmtree(folder)
            return found

        names = SETS if only is None else (only,)
        runs = {name: {seed: pool.submit(judged, name, seed) for seed in seeds} for name in names}
        figures: dict[str, Any] = {
            name: _of_seeds({seed: found.result() for seed, found in each.items()}) for name, each in runs.items()
        }
        figures["equal_after_kill"] = equal_after_kill(root / "kills", 40, 3)
    return figures


def _of_seeds(runs: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a set: the worst of its seeds, and the mean of each kind of fault."""
    every = list(runs.values())
    least = {
        name: min((each[name] for each in every if each[name] is not None), default=None)
        for name in ("precision", "first", "named")
    }
    most = {name: max(each[name] for each in every) for name in ("words", "false", "cost")}
    return least | most | {"named_by_kind": _means([each["named_by_kind"] for each in every]), "seeds": runs}


def _means(shares: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each kind, which a run lacks if all its clips of it were held out."""
    kinds = {kind for each in shares for kind in each}
    return {kind: statistics.mean(each[kind] for each in shares if kind in each) for kind in sorted(kinds)}


def main() -> None:
    """Measure, and print one object or some lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    parser.add_argument("--only", choices=SETS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=800, help="of the training on clips")
    parser.add_argument("--lora-steps", type=int, default=1000, help="of 4 pictures: 100 showings of each")
    parser.add_argument("--base-steps", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at once, of one thread each")
    options = parser.parse_args()
    steps = {"steps": options.steps, "lora_steps": options.lora_steps, "base_steps": options.base_steps}
    figures = run(options.only, options.seeds, **steps, jobs=options.jobs, quiet=options.json)
    if options.save:
        keep(RESULTS, figures)
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
