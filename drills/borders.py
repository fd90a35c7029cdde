"""Drills where a stranger touches Reelworks first: the store and the loader in a loop of his own, odd files, full disks.

`python -m drills.borders store loader --json` tries each drill of these rooms `--times` times with random circumstances,
and tells per room and per drill how many tries there were and how many went wrong; its last line is one JSON object.
`--seed` gives other circumstances, and what went wrong is told with the number of its try.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._results import AT_START, keep

RESULTS = Path(__file__).parent / "results" / "borders.json"
ROOMS = tuple(sorted(path.stem for path in (Path(__file__).parent / "_borders").glob("[!_]*.py")))
_SHOWN = 5


def drill(room: str, name: str, *, times: int, seed: int, speaks: bool) -> dict[str, Any]:
    """Try a drill some times; returns how often, and how often it went wrong."""
    work = importlib.import_module(f"drills._borders.{room}").DRILLS[name]
    began, wrong = time.perf_counter(), []
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            try:
                problems = work(random.Random(f"{seed}-{room}-{name}-{number}"), Path(folder))
            except Exception as error:
                problems = [f"{type(error).__name__}: {error}"]
        if problems:
            wrong.append(f"try {number}: {'; '.join(problems)}")
            if speaks:
                print(f"  {wrong[-1]}", flush=True)
    result = {"tried": times, "wrong": len(wrong), "seconds": round(time.perf_counter() - began, 1)}
    return {**result, "examples": wrong[:_SHOWN]} if wrong else result


def main() -> None:
    """Try the drills of the rooms that are named, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], help="all by default")
    parser.add_argument("--only", help="one drill, by its name")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    asked = parser.parse_args()
    from benchmarks.schedule import machine_name

    told: dict[str, Any] = {}
    for room in asked.rooms or ROOMS:
        drills: dict[str, Any] = {}
        for name in importlib.import_module(f"drills._borders.{room}").DRILLS:
            if asked.only in (None, name):
                if not asked.json:
                    print(f"{room}, {name}", flush=True)
                drills[name] = result = drill(room, name, times=asked.times, seed=asked.seed, speaks=not asked.json)
                if not asked.json:
                    print(f"  {result['wrong']} of {result['tried']} wrong, {result['seconds']} s", flush=True)
        told[room] = {key: sum(result[key] for result in drills.values()) for key in ("tried", "wrong")}
        told[room]["drills"] = drills
    result = {**told, "seed": asked.seed, "machine": machine_name(), **AT_START}
    if asked.save:
        keep(RESULTS, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
