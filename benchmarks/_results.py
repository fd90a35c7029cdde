"""Keep figures in a folder `results/`, which is done only with --save, with the commit and load of the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from reelworks.core import machine, system

# Figures that are kept change nothing of what is measured next.
_CODE = (".", ":(exclude)benchmarks/results", ":(exclude)drills/results")
_BUSY_SHARE = 0.5  # of the cores


def keep(file: Path, figures: dict[str, Any], part: str | None = None) -> None:
    """Write figures to a file; with a part, only that part of it, whose other figures stay as they were."""
    if AT_START["load_average"] > _BUSY_SHARE * machine.cores():
        load = f"a load of {AT_START['load_average']:.1f} on {machine.cores()} cores when this began"
        print(f"warning: {load}: times that are kept now are those of a busy machine", file=sys.stderr)
    known = json.loads(file.read_text(encoding="utf-8")) if part is not None and file.exists() else {}
    found = {**figures, **AT_START}
    values = found if part is None else {**known, part: {**known.get(part, {}), **found}}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _commit() -> str:
    """Return the short hash of the commit that is checked out, with "+" after it if files differ from it.

    Without git or its folder it is "unknown".
    """
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--", *_CODE) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    folder = Path(__file__).parents[1]
    return subprocess.run(
        ["git", "-C", folder, *words], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout.strip()


# Before anything is measured: the tree may have moved on when a long benchmark ends, and its own work is load too.
AT_START: dict[str, Any] = {"commit": _commit(), "load_average": round(system.load_average(), 2)}
