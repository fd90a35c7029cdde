"""Whatever happens to a folder, after each scan:

- the live rows are the files that are there, one row for each, with their present caption;
- every row keeps its ordinal and its content for ever;
- every earlier version is what it was;
- a second scan writes nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import media_makers as media
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store.store import Catalog

NAMES = st.sampled_from(["a.png", "b.png", "sub/c.png", "sub/d.png"])


class Histories(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.data, self.catalog = self.folder / "data", self.folder / "catalog"
        (self.data / "sub").mkdir(parents=True)
        media.write_picture(self.data / "always.png")  # a dataset without files is refused
        self.widths: dict[str, int] = {"always.png": 4}  # 0: a broken file
        self.captions: dict[str, str] = {}
        self.tables: list[pa.Table] = []
        self.lives: list[pa.Table] = []

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(name=NAMES, width=st.integers(1, 5))
    def write(self, name: str, width: int) -> None:
        media.write_picture(self.data / name, size=(width, 2))
        self.widths[name] = width

    @rule(name=NAMES)
    def break_(self, name: str) -> None:
        (self.data / name).write_bytes(b"broken")
        self.widths[name] = 0

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        (self.data / name).unlink(missing_ok=True)
        self.widths.pop(name, None)

    @rule(name=NAMES, caption=st.sampled_from(["", "x", "y", None]))
    def caption(self, name: str, caption: str | None) -> None:
        file = (self.data / name).with_suffix(".txt")
        if caption is None:
            file.unlink(missing_ok=True)
            self.captions.pop(name, None)
        else:
            file.write_text(caption, encoding="utf-8")
            self.captions[name] = caption

    @rule()
    def rescan(self) -> None:
        source = [Source("d", self.data)]
        result = scan_sources(source, self.catalog, workers=1)
        self.check_live(Catalog.open(self.catalog))
        again = scan_sources(source, self.catalog, workers=1)
        assert (again.unchanged, again.version) == (result.found, result.version)
        self.check_past(Catalog.open(self.catalog))

    def check_live(self, catalog: Catalog) -> None:
        rows = catalog.live().to_table().to_pylist()
        assert {row["path"]: row["width"] for row in rows} == self.widths
        assert {row["path"]: row["caption"] for row in rows} == {p: self.captions.get(p) for p in self.widths}
        assert all((row["error"] is None) == (row["width"] > 0) for row in rows)
        assert len({row["uid"] for row in rows}) == len(rows) == len(self.widths)

    def check_past(self, catalog: Catalog) -> None:
        assert catalog.version in (len(self.lives), len(self.lives) + 1)
        if catalog.version > len(self.lives):
            self.tables.append(catalog.table)
            self.lives.append(catalog.live().to_table())
        for version, (table, live) in enumerate(zip(self.tables, self.lives, strict=True), start=1):
            then = Catalog.open(self.catalog, version)
            assert then.table.to_pylist() == table.to_pylist() == catalog.table[: len(table)].to_pylist()
            assert then.live().to_table().equals(live)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=10, stateful_step_count=10, suppress_health_check=list(HealthCheck))
