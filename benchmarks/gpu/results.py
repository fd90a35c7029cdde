"""The file of figures: what was measured, when rows came, and which units are still to do.

{"device": ..., "units": {"steps/wan": {"status": "done", "seconds": 61.2, "rows": [...], "error": ""}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks._results import AT_START

DONE, FAILED, UNFINISHED = "done", "failed", "unfinished"
_MOST_CHARACTERS = 3000  # of an error


class Results:
    """Figures of one device in a file, which is written whole after every change."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self.values.setdefault("units", {})

    def describe(self, facts: dict[str, Any]) -> None:
        """Say which machine it is."""
        self.values = {**facts, "units": self.values["units"]}
        self._write()

    def begin(self, unit: str, torch_version: str) -> None:
        """Forget a unit's former figures; it counts as unfinished until `end`."""
        self.values["units"][unit] = {
            "status": UNFINISHED,
            "torch": torch_version,
            "seconds": 0,
            "rows": [],
            "error": "",
        }
        self._write()

    def add(self, unit: str, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows of a unit."""
        self.values["units"][unit]["rows"] += rows
        self._write()

    def end(self, unit: str, status: str, seconds: float, error: str = "") -> None:
        """Say how a unit ended; of a long error the end is kept."""
        ended = {"status": status, "seconds": round(seconds, 1), "error": error[-_MOST_CHARACTERS:], **AT_START}
        self.values["units"][unit] |= ended
        self._write()

    def status(self, unit: str) -> str:
        """Return how a unit ended; "" if it has not been tried."""
        return str(self.values["units"].get(unit, {}).get("status", ""))

    def rows(self, unit: str) -> list[dict[str, Any]]:
        """Return the rows of a unit, as far as there are any."""
        return list(self.values["units"].get(unit, {}).get("rows", []))

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.file.with_suffix(".tmp")
        fresh.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.file)
