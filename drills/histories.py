"""Whole runs, interrupted and changed at random, and whether each clip was trained and accounted for as it should.

`python -m drills.histories --json` lives through 1,000 histories: two to six starts, each ended by a step count,
SIGTERM, SIGKILL at a storage call (inside a save too) or by itself, with up to four changes between them. What was
trained is noted behind the optimizer's steps, outside of the run folder. Its last line is one JSON object:
histories, those that trained a clip twice or never, those of which `reelworks coverage` told something else, and
seconds; by seed too, of which `--seed 1,2,3` gives several. One that went wrong is written below `--failures`, and
`--only FILE` lives through it again and tells all; `--shrink FILE` makes it smaller first. One of twenty is typed as
commands.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "histories.json"
_MEMORY = Path("/dev/shm")
_TYPED_EVERY = 20
_SHOWN = 12


class Lived(NamedTuple):
    """A history by its seed and number, and what was seen of it."""

    seed: int
    number: int
    history: Json
    found: Json

    def __str__(self) -> str:
        return f"{self.seed}-{self.number}"


def history_of(seed: int, number: int, without: Collection[str] = ()) -> Json:
    """The history of a number, the same each time."""
    from drills._histories import draw

    typed = number % _TYPED_EVERY == _TYPED_EVERY - 1
    return draw.draw(random.Random(f"{seed}-{number}"), typed=typed, without=without)


def live(history: Json, verbose: bool = False) -> Json:
    """Live through a history; returns what was seen of it as JSON."""
    from drills._histories import play

    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        say = print if verbose else (lambda line: None)
        try:
            verdict = play.play(history, Path(folder, "history"), say=say)
        except Exception as error:
            raise RuntimeError(f"the history itself broke: {json.dumps(history)}") from error
    return {
        "problems": [[p.signature, p.start, p.text] for p in verdict.problems],
        "training": verdict.wrong(play.TRAINING),
        "account": verdict.wrong(play.ACCOUNT),
        "refusals": [play.general(text) for text in verdict.refusals.values()],
        "seconds": verdict.seconds,
        "starts": verdict.starts,
        "start_seconds": verdict.start_seconds,
    }


def _work(lived: Lived) -> Lived:
    return lived._replace(found=live(lived.history))


def _prepare() -> None:
    from drills._histories import start

    start.serve()


def live_all(arguments: argparse.Namespace) -> Iterator[Lived]:
    """Live through the histories of all seeds, some at a time."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, context, _prepare) as pool:
        numbers = range(arguments.first, arguments.first + arguments.histories)
        without = arguments.without.split(",") if arguments.without else []
        each = [Lived(s, n, history_of(s, n, without), {}) for s in arguments.seed for n in numbers]
        queued = [pool.submit(_work, one) for one in each]
        for done in as_completed(queued):
            yield done.result()


def measure(arguments: argparse.Namespace) -> Json:
    """Live through all, and sum up."""
    from benchmarks import _results
    from benchmarks.schedule import machine_name

    began = time.perf_counter()
    seen: list[Lived] = []
    failures: dict[str, list[Lived]] = defaultdict(list)
    refusals: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for one in live_all(arguments):
        seen.append(one)
        refusals.update(one.found["refusals"])
        for signature, start, text in one.found["problems"]:
            if one not in failures[signature]:
                failures[signature].append(one)
            examples.setdefault(signature, f"history {one}, start {start}: {text}")
        if one.found["problems"]:
            keep(arguments.failures, one)
        if not arguments.json and not len(seen) % 20:
            wrong = sum(bool(lived.found["problems"]) for lived in seen)
            print(f"{len(seen)} lived, {wrong} wrong, {time.perf_counter() - began:.0f} s", flush=True)
    starts = sum(one.found["starts"] for one in seen)
    start_seconds = sum(one.found["start_seconds"] for one in seen)
    return {
        **sums(seen),
        "seconds": round(time.perf_counter() - began, 1),
        "seeds": {str(seed): sums([one for one in seen if one.seed == seed]) for seed in arguments.seed},
        "first": arguments.first,
        "starts": starts,
        "seconds_per_start": round(start_seconds / max(starts, 1), 3),
        "jobs": arguments.jobs,
        "refusals": dict(refusals.most_common()),
        "failures": {
            signature: {
                "histories": [str(one) for one in sorted(lived, key=lambda one: (one.seed, one.number))],
                "example": examples[signature],
            }
            for signature, lived in sorted(failures.items(), key=lambda item: -len(item[1]))
        },
        **_results.AT_START,
        "machine": machine_name(),
    }


def sums(seen: list[Lived]) -> Json:
    """Count histories, and those that went wrong."""
    return {
        "histories": len(seen),
        "wrong_training": sum(one.found["training"] for one in seen),
        "wrong_account": sum(one.found["account"] for one in seen),
    }


def keep(folder: Path, lived: Lived) -> None:
    """Write a history that went wrong, so that it can be lived through again."""
    folder.mkdir(parents=True, exist_ok=True)
    told = [f"start {start}: {text}" for _, start, text in lived.found["problems"][:_SHOWN]]
    file = folder / f"history-{lived.seed}-{lived.number:06d}.json"
    file.write_text(json.dumps({"history": lived.history, "problems": told}, indent=1) + "\n", encoding="utf-8")


def again(file: Path, *, smaller: bool) -> Json:
    """Live through a kept history and tell all; with `smaller`, through the least one that goes wrong alike."""
    from drills._histories.shrink import shrink

    _prepare()
    history = json.loads(file.read_text(encoding="utf-8"))["history"]
    if smaller:
        first = live(history)["problems"]
        signature = first[0][0] if first else ""
        print(f"looking for the least history with: {signature}", flush=True)
        history = shrink(history, lambda one: signature in [found[0] for found in live(one)["problems"]])
        small = file.with_suffix(".small.json")
        small.write_text(json.dumps({"history": history, "problems": [signature]}, indent=1) + "\n", encoding="utf-8")
        print(f"written to {small}")
    return live(history, verbose=True)


def show(result: Json) -> None:
    """Print the figures for people."""
    print(f"{result['histories']} histories of {result['starts']} starts at {result['commit']} on {result['machine']}")
    for seed, found in result["seeds"].items():
        print(f"seed {seed}: {found['wrong_training']} trained wrongly, {found['wrong_account']} told wrongly")
    print(f"{result['seconds']} s, {result['seconds_per_start']} s a start with {result['jobs']} jobs")
    for text, times in result["refusals"].items():
        print(f"refused {times} times: {text}")
    for signature, found in result["failures"].items():
        print(f"{len(found['histories'])} × {signature}\n    {found['example'][:300]}")


def _seeds(text: str) -> list[int]:
    return list(dict.fromkeys(int(one) for one in text.split(",")))


def main() -> None:
    """Parse, live, print; keep the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--histories", type=int, default=1000, help="of each seed")
    parser.add_argument("--seed", type=_seeds, default=[0], help="several with commas, each of so many histories")
    parser.add_argument("--first", type=int, default=0, help="number of the first history of a seed")
    parser.add_argument("--jobs", type=int, default=2, help="histories at a time")
    parser.add_argument("--without", help="changes that are left out, with commas")
    parser.add_argument(
        "--failures",
        type=Path,
        default=Path("runs/histories"),
        help="where histories that went wrong are written",
    )
    parser.add_argument("--only", type=Path, help="live through a kept history again, and tell all")
    parser.add_argument("--shrink", type=Path, help="the same with the least one that goes wrong alike")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    arguments = parser.parse_args()
    if file := arguments.only or arguments.shrink:
        print(json.dumps(again(file, smaller=file == arguments.shrink)))
        return
    result = measure(arguments)
    if not arguments.json:
        show(result)
    if arguments.save:
        from benchmarks._results import keep as keep_figures

        keep_figures(RESULTS, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
