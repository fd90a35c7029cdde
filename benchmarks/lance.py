"""The catalog's store beside Lance (`pip install pylance`): the same rows, a re-scan of a hundredth of them, and what is read.

`python -m benchmarks.lance --json` prints as its last line seconds, medians of `--times` pairs, of both, and bytes on disk.
`open` reads all columns of the live rows, `columns` the few that planning needs, `rescan` appends new rows for a hundredth of
the clips and retires their former ones, flushed to disk, and `open_rescanned` reads the live rows after five of these.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import _catalogs
from benchmarks._results import keep
from reelworks.data.catalog.store.schema import SCHEMA
from reelworks.data.catalog.store.store import Catalog

RESULTS = Path(__file__).parent / "results" / "lance.json"
PLANNED = ["uid", "dataset", "kind", "num_frames", "height", "width", "fps"]
SOURCES = [{"name": "web", "root": "/data/web"}]
_RESCANS = 5


class Ours:
    """The store of catalogs."""

    def __init__(self, path: Path, rows: pa.Table) -> None:
        self.path = path
        path.mkdir(parents=True)
        Catalog.open_or_new(path).append(rows, np.zeros(0, dtype=np.int64), SOURCES)

    def open(self) -> int:
        """Read the live rows."""
        return self._read(SCHEMA.names)

    def columns(self) -> int:
        """Read what planning needs."""
        return self._read(PLANNED)

    def _read(self, names: list[str]) -> int:
        live = Catalog.open(self.path).live()
        live.load(*names)
        return len(live)

    def rescan(self, rows: pa.Table) -> None:
        """Replace the rows of some clips."""
        catalog = Catalog.open(self.path)
        first = sum(part.rows for part in catalog.parts)
        ordinals = pa.array(np.arange(len(rows)) + first)
        new = rows.set_column(rows.schema.get_field_index("ordinal"), rows.schema.field("ordinal"), ordinals)
        live = catalog.live()
        catalog.append(new, live.ordinal[live.find(rows["uid"].to_numpy())], SOURCES)


class Lance:
    """A table of Lance, whose deleted rows and versions take the place of retired ordinals and parts."""

    def __init__(self, path: Path, rows: pa.Table) -> None:
        import lance

        self.lance, self.path = lance, str(path)
        lance.write_dataset(rows, self.path, enable_stable_row_ids=True)

    def open(self) -> int:
        """Read the live rows."""
        return int(self.lance.dataset(self.path).to_table(with_row_id=True).num_rows)

    def columns(self) -> int:
        """Read what planning needs."""
        return int(self.lance.dataset(self.path).to_table(columns=PLANNED).num_rows)

    def rescan(self, rows: pa.Table) -> None:
        """Replace the rows of some clips."""
        self.lance.dataset(self.path).merge_insert(
            "uid"
        ).when_matched_update_all().when_not_matched_insert_all().execute(rows)


def seconds(call: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(rows: pa.Table, folder: Path) -> dict[str, float]:
    """Measure one store of each kind in a folder, taking turns."""
    found: dict[str, float] = {}
    stores: dict[str, Ours | Lance] = {}
    for name, kind in (("ours", Ours), ("lance", Lance)):
        began = time.perf_counter()
        stores[name] = kind(folder / name, rows)
        found[f"{name}.write"] = time.perf_counter() - began
    for what in ("open", "columns"):
        for name, store in stores.items():
            found[f"{name}.{what}"] = seconds(getattr(store, what))
    part = len(rows) // 100
    for name, store in stores.items():
        times = [seconds(partial(store.rescan, rows.slice(i * part, part))) for i in range(_RESCANS)]
        found[f"{name}.rescan"] = statistics.median(times)
        found[f"{name}.open_rescanned"] = seconds(store.open)
        found[f"{name}.bytes"] = sum(f.stat().st_size for f in (folder / name).rglob("*") if f.is_file())
    assert stores["ours"].open() == stores["lance"].open() == len(rows)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        _catalogs.make(Path(place) / "source", args.rows)
        rows = Catalog.open(Path(place) / "source").table.select(SCHEMA.names)
        each: list[dict[str, float]] = []
        for _ in range(args.times):
            each.append(measure(rows, Path(place) / "stores"))
            shutil.rmtree(Path(place) / "stores")
    medians: dict[str, Any] = {name: round(statistics.median(one[name] for one in each), 3) for name in each[0]}
    result = {"rows": len(rows), **medians}
    if args.save:
        keep(RESULTS, result)
    print(json.dumps(result) if args.json else "\n".join(f"{name:24} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
