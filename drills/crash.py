"""What a process's death leaves of a run's checkpoints, at every storage call of a save with retention.

`python -m drills.crash --json` kills one rank, and each of two ranks, at every call that `core.storage`
makes, before it, and in the middle of writes; after each, the folder is resumed from twice and the work done
again (`testing.one_save` says what must hold). Its last line is one JSON object: points and survived by number of ranks.
More parts on demand: `--strace` compares the calls that are seen with the kernel's, `--ways` kills plain ways to
save for comparison, `--kills N` kills a training N times at random, `--stages N` a run of three stages of the demo's model. A SIGKILL loses nothing that a call has
done, so all but the training works in memory where the machine has /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import one_save
import storage_calls as crash
import torch
from benchmarks._results import keep
from benchmarks.schedule import machine_name

from drills import _crash_save, _crash_stages, _crash_training, _crash_ways, _strace
from reelworks.data.checkpoint.folder import CheckpointFolder

Json = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "crash.json"
_MEMORY = Path("/dev/shm")


def kill_saves(numbers: list[int], folder: Path) -> Json:
    """Kill one save everywhere, on so many ranks each."""
    began = time.perf_counter()
    seen = {str(n): _crash_save.survive(n, Path(tempfile.mkdtemp(dir=folder))) for n in numbers}
    wrong = [f"{point}: {'; '.join(said)}" for points in seen.values() for point, said in points.items() if said]
    return {
        "points": {n: len(points) for n, points in seen.items()},
        "survived": {n: sum(not said for said in points.values()) for n, points in seen.items()},
        "ranks": numbers,
        "seconds": round(time.perf_counter() - began, 1),
        "wrong": wrong,
    }


def count_calls(folder: Path) -> Json:
    """Changing calls of one save, as the seam sees them and as the kernel does."""
    if reason := _strace.is_missing():
        return {"skipped": reason}
    one_save.prepare(CheckpointFolder(folder / "template"))

    def fresh(name: str) -> CheckpointFolder:
        one_save.copy(folder / "template", folder / name)
        return CheckpointFolder(folder / name)

    seam, kernel = fresh("seam"), fresh("kernel")
    recorded = crash.run(lambda rank, told: one_save.work(seam, told), record=True).calls[0]
    traced = _strace.calls(lambda: one_save.work(kernel, lambda what: None), kernel.root)
    return {"seam": _by_kind(recorded), "kernel": _by_kind(traced)}


def _by_kind(calls: Any) -> Json:
    return dict(sorted(Counter(call.kind for call in calls).items()))


def measure(arguments: argparse.Namespace) -> Json:
    """Everything that was asked for."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        result = kill_saves(arguments.ranks, Path(folder)) if arguments.ranks else {}
        if arguments.strace:
            result["calls"] = count_calls(Path(tempfile.mkdtemp(dir=folder)))
        if arguments.ways:
            result["ways"] = _crash_ways.table(Path(folder))
    if arguments.kills:
        result["training"] = _crash_training.survive(arguments.kills, arguments.seed)
    if arguments.stages:
        result["stages"] = _crash_stages.survive(arguments.stages, arguments.seed)
    return {**result, "machine": machine_name()}


def show(result: Json) -> None:
    """Print the figures for people."""
    print(f"on {result['machine']}")
    for ranks, points in result.get("points", {}).items():
        print(f"{ranks} rank(s): survived {result['survived'][ranks]} of {points} kills")
    for line in result.get("wrong", []):
        print(f"  {line}")
    if calls := result.get("calls"):
        print(f"calls: {calls}")
    for name, row in result.get("ways", {}).items():
        told = row if isinstance(row, str) else f"survived {row['survived']} of {row['points']}"
        print(f"{name:<48} {told}")
    if training := result.get("training"):
        print(f"training: {training}")
    if stages := result.get("stages"):
        print(f"stages: {stages}")


def main() -> None:
    """Parse, measure, print; keep the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="*",
        default=[1, 2],
        help="numbers of ranks to kill a save of; none to skip it",
    )
    parser.add_argument("--strace", action="store_true", help="compare with what the kernel sees")
    parser.add_argument("--ways", action="store_true", help="kill plain ways to save, too")
    parser.add_argument("--kills", type=int, default=0, help="kill a training so many times at random")
    parser.add_argument("--stages", type=int, default=0, help="kill a run of three stages so many times at random")
    parser.add_argument("--seed", type=int, default=0, help="of the random kills")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the parts that ran in {RESULTS.name}")
    arguments = parser.parse_args()
    # Every fork must begin with one thread.
    torch.set_num_threads(1)
    result = measure(arguments)
    if not arguments.json:
        show(result)
    if arguments.save:
        kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        keep(RESULTS, {**kept, **result})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
