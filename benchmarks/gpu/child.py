"""Run one unit and write its rows, one line of JSON each, as they come: for `python -m benchmarks.gpu` alone."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path

from benchmarks.gpu import sections


def main() -> None:
    """Run the unit; whatever fails ends the process, and rows that were written stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("unit")
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    [unit] = sections.chosen([asked.unit], "unit")
    module = importlib.import_module(f"benchmarks.gpu.{unit.module}")
    began = time.monotonic()
    with asked.file.open("a", encoding="utf-8") as file:
        for row in module.rows(unit.own_name or unit.section, asked.device, asked.tiny):
            print(json.dumps(row | {"at_s": round(time.monotonic() - began, 1)}), file=file, flush=True)


if __name__ == "__main__":
    main()
