"""Faults that somebody could make by a slip, planted one at a time: do the quick tests notice them?

`_planted/*.toml` names each: the text of a module, what stands in its place, and what a user would see. Each is planted in a
copy of the program, and the tests that are named with it run. `--whole` runs all that `make test` does on each, as somebody does
who does not know where the fault lies. A copy without a fault is tried first, since tests that fail there tell nothing; so do those
that take longer than anybody waits, which count as failed. A fault whose text is gone is "stale".
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

from benchmarks._results import keep

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "planted.json"
_MOST_SECONDS = 3600  # of a run of tests


@dataclasses.dataclass(frozen=True)
class Fault:
    """A slip: `before` stands once in the module, and `after` does what `effect` tells; `tests` are those that notice it."""

    module: str
    before: str
    after: str
    effect: str
    tests: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_stale(self) -> bool:
        """Whether the text is no longer in the module, once."""
        file = self._file(ROOT / "src")
        return not file.exists() or file.read_text(encoding="utf-8").count(self.before) != 1

    def plant(self, sources: Path) -> None:
        """Write the slip into a copy of the program."""
        file = self._file(sources)
        file.write_text(file.read_text(encoding="utf-8").replace(self.before, self.after), encoding="utf-8")

    def _file(self, sources: Path) -> Path:
        return sources / "reelworks" / self.module


def faults() -> list[Fault]:
    """Return all faults that are to be planted."""
    files = sorted((Path(__file__).parent / "_planted").glob("*.toml"))
    return [Fault(**values) for file in files for values in tomllib.loads(file.read_text(encoding="utf-8"))["fault"]]


def is_noticed(tests: list[str], fault: Fault | None, processes: int) -> bool:
    """Whether tests fail on a copy of the program with a fault; without tests, all quick ones are meant."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "docs", Path(folder) / "docs")  # pages that tests look for beside the program
        if fault is not None:
            fault.plant(Path(folder) / "src")
        workers = ["-n", str(processes), "--dist", "worksteal"] if len(tests) != 1 else []
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--durations=0", *workers, *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{folder}/src", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_MOST_SECONDS,
        )
    if run.returncode not in {0, 1, 2}:  # passed, failed, and a worker or the collection that failed
        sys.exit(f"pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.returncode != 0


def outcome(fault: Fault, *, whole: bool, processes: int) -> str:
    """Plant a fault and run tests; return "noticed", "not noticed", or "stale"."""
    if fault.is_stale:
        return "stale"
    try:
        return "noticed" if is_noticed([] if whole else fault.tests, fault, processes) else "not noticed"
    except subprocess.TimeoutExpired:
        return "noticed"


def main() -> None:
    """Plant the faults of the parts that are named, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "modules", nargs="*", help="faults in modules that begin so, such as data/loader; all by default"
    )
    parser.add_argument("--whole", action="store_true", help="run all quick tests on each")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    asked = parser.parse_args()
    chosen = [fault for fault in faults() if not asked.modules or fault.module.startswith(tuple(asked.modules))]
    named = [] if asked.whole else sorted({test for fault in chosen for test in fault.tests})
    if is_noticed(named, None, asked.processes):
        sys.exit("the tests fail without a fault too")
    counts: Counter[str] = Counter()
    missed = []
    for fault in chosen:
        found = outcome(fault, whole=asked.whole, processes=asked.processes)
        counts[found] += 1
        missed += [f"{fault.module}: {fault.effect}"] * (found != "noticed")
        print(f"{found:12} {fault.module}: {fault.effect}", flush=True)
    told = {"planted": len(chosen), **counts, "missed": missed}
    print(json.dumps(told))
    if asked.save:
        keep(RESULTS, told)


if __name__ == "__main__":
    main()
