"""All that a GPU must show, in at most nine minutes: `python -m benchmarks.gpu`.

    python -m benchmarks.gpu                      what is not yet in the file, most valuable first
    python -m benchmarks.gpu --list               what there is, and how it ended
    python -m benchmarks.gpu --only steps tune    these alone, as far as they are missing
    python -m benchmarks.gpu --again steps/wan-49x480p   these once more; `--again failed`: what failed
    python -m benchmarks.gpu --device cpu --tiny  everything on small networks, in a few minutes

Figures go to gpu-NAME.json in runs/gpu-figures while they are measured, with --save in benchmarks/results. Each unit is a
process of its own with a time limit; one that fails leaves its error in the file, and the others go on. Another call goes on
with what is missing.
`make reference` writes docs/reference/gpu-figures.md from the files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import machine, results, sections
from benchmarks.gpu.results import Results
from benchmarks.gpu.sections import Unit
from reelworks.core import system
from reelworks.core.errors import UserError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
_POLL_SECONDS = 0.2
_LEAST_SECONDS = 15.0  # that are left, below which nothing is begun
_PATIENCE = {False: 1, True: 3}  # with small networks most of the time goes into the start of processes


def main() -> None:
    """Choose the units and run them."""
    asked = _arguments()
    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu" and not (asked.tiny or asked.list):
        sys.exit("there is no GPU; --device cpu --tiny runs everything on small networks, to see that it works")
    found = Results(asked.results / machine.file_name(device, tiny=asked.tiny))
    try:
        units = _to_do(asked, found)
    except UserError as error:
        sys.exit(str(error))
    if asked.list:
        for unit in sections.UNITS:
            print(f"{unit.name:22} {found.status(unit.name) or 'not run':10} {unit.about}")
        return
    left = _run_all(units, found, device, asked)
    print(f"written to {found.file}" + (f"; call again for {', '.join(left)}" if left else ""))
    failed = [unit.name for unit in units if found.status(unit.name) == results.FAILED]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: the GPU")
    parser.add_argument("--tiny", action="store_true", help="small networks")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which the command ends")
    parser.add_argument("--only", nargs="+", default=[], metavar="SECTION")
    parser.add_argument("--again", nargs="+", default=[], metavar="SECTION", help='"failed": all that failed')
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "gpu-figures", metavar="FOLDER")
    parser.add_argument(
        "--save", dest="results", action="store_const", const=RESULTS, help="keep the figures in benchmarks/results"
    )
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def _to_do(asked: argparse.Namespace, found: Results) -> list[Unit]:
    """Return the units that are asked for and missing, or asked for again."""
    names = [name for name in asked.again if name != "failed"]
    again = set(sections.chosen(names, "--again")) if names else set[Unit]()
    if "failed" in asked.again:
        again |= {unit for unit in sections.UNITS if found.status(unit.name) == results.FAILED}
    wanted = sections.chosen(asked.only, "--only")
    if asked.again and not asked.only:
        wanted = [unit for unit in sections.UNITS if unit in again]
    return [unit for unit in wanted if unit in again or found.status(unit.name) in ("", results.UNFINISHED)]


def _run_all(units: list[Unit], found: Results, device: str, asked: argparse.Namespace) -> list[str]:
    """Run units as long as there is time, and return the names of those that were not run to their end."""
    ends = time.monotonic() + 60 * asked.minutes
    if units:
        found.describe(machine.facts(device))
    if device == "cuda":
        torch.cuda.empty_cache()  # this process keeps nothing from those that measure
    for unit in units:
        remaining = ends - time.monotonic()
        if remaining > max(_LEAST_SECONDS, 0 if asked.tiny else unit.seconds):
            print(f"== {unit.name}: {unit.about}", flush=True)
            _run(unit, found, device, remaining, tiny=asked.tiny)
    return [unit.name for unit in units if found.status(unit.name) in ("", results.UNFINISHED)]


def _run(unit: Unit, found: Results, device: str, remaining: float, *, tiny: bool) -> None:
    """Run a unit in a process of its own, in the remaining seconds and its limit, and keep its rows and its end."""
    limit = unit.limit_seconds * _PATIENCE[tiny]
    seconds = min(limit, remaining)
    found.begin(unit.name, torch.__version__)
    command = [sys.executable, "-m", "benchmarks.gpu.child", unit.name]
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "rows"), Path(folder, "log")
        file.touch()
        began, read = time.monotonic(), 0
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, str(file), "--device", device, *(["--tiny"] if tiny else [])],
                cwd=ROOT,
                env=_environment(device),
                stdout=output,
                stderr=subprocess.STDOUT,
                **system.OWN_GROUP,
            )
        try:
            while process.poll() is None and time.monotonic() - began < seconds:
                time.sleep(_POLL_SECONDS)
                read = _keep(unit, found, file, read)
            in_time = process.poll() is not None
        finally:
            system.kill_all(process)
            process.wait()
        _keep(unit, found, file, read)
        took, told = time.monotonic() - began, log.read_text(encoding="utf-8", errors="replace").strip()
    if not in_time and seconds < limit:
        found.end(unit.name, results.UNFINISHED, took, "the command's time was over")
    elif not in_time:
        found.end(unit.name, results.FAILED, took, f"{told}\nended after {seconds:.0f} s")
    elif process.returncode:
        found.end(unit.name, results.FAILED, took, told or f"exit code {process.returncode}")
    else:
        found.end(unit.name, results.DONE, took)
    entry = found.values["units"][unit.name]
    print(f"   {entry['status']} after {took:.0f} s {entry['error'][-600:]}", flush=True)


def _environment(device: str) -> dict[str, str]:
    """Let a child find the package where it is not installed, and the benchmarks."""
    path = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    # Small networks gain nothing from several threads, which on a busy CPU would wait for each other.
    threads = {"OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONUNBUFFERED": "1", **threads}


def _keep(unit: Unit, found: Results, file: Path, read: int) -> int:
    """Add the complete lines behind the first `read` bytes, and return how many bytes were read now."""
    fresh, _, _ = file.read_bytes()[read:].rpartition(b"\n")
    rows: list[dict[str, Any]] = [json.loads(line) for line in fresh.splitlines()]
    for row in rows:
        print("   " + ", ".join(f"{key} {value}" for key, value in row.items() if value is not None), flush=True)
    if rows:
        found.add(unit.name, rows)
    return read + len(fresh) + bool(fresh)


if __name__ == "__main__":
    main()
