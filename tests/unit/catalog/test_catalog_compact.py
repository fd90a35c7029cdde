"""Compaction changes nothing that a catalog shows from then on, whatever its history, and wherever it is killed.

- live rows, their ordinals, the digest and the uids of all rows are what they were, and so is what later scans do;
- a version before the compaction is refused by name, and one that a reader has open goes on;
- a run's copy of the catalog stays readable and grows with the compacted one.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import catalog_rows
import durable
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.catalog.store import copies, part_files, reader
from reelworks.data.catalog.store.compact import compact
from reelworks.data.catalog.store.schema import SCHEMA, SCORE
from reelworks.data.catalog.store.store import Catalog

ROW = catalog_rows.rows({"dataset": "d", "error": None}).to_table().to_pylist()[0] | {"ordinal": 0}
# Each scan: the clips that it finds new or changed, and those that are gone.
SCANS = st.lists(st.tuples(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9))), min_size=1, max_size=3)


def scan(folder: Path, found: set[int], gone: set[int]) -> Catalog:
    """Append what a scan would: new rows for found clips, whose former rows are retired like those of gone ones."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = Catalog.open_or_new(folder)
    number = catalog.version
    rows = [
        ROW | {"uid": 100 + i, "path": f"{i}.mp4", "group": f"{i}.mp4", "fingerprint": f"{number}", "caption": "x" * i}
        for i in sorted(found)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    if number % 2:
        table = table.append_column(SCORE + "aes", pa.array([float(i) for i in sorted(found)], pa.float64()))
    live = catalog.live()
    places = live.find(np.array([100 + i for i in sorted(found | gone)], dtype=np.uint64))
    return catalog.append(table, live.ordinal[places[places >= 0]], [])


def shown(catalog: Catalog) -> dict[str, Any]:
    """All that must not change, but for which columns of scores there are."""
    live = catalog.live()
    scores = {name: score[~np.isnan(score)].tolist() for name, score in live.scores.items()}
    return {
        "live": live.replaced(scores={}).to_table().to_pylist(),
        "scores": {name: score for name, score in scores.items() if score},
        "masks": (live.captioned.tolist(), live.own_group.tolist()),
        "digest": catalog.digest(),
        "uids": catalog.uids().tolist(),
        "version": catalog.version,
        "paths": catalog.columns("path").column("path").take(live.ordinal).to_pylist(),
    }


@given(before=SCANS, between=SCANS, after=SCANS)
@example(before=[({0, 1}, set())], between=[({2}, {0})], after=[({3}, set())])  # one part more, nothing to drop
@settings(max_examples=3, deadline=None)
@pytest.mark.slow
def test_any_history_shows_the_same_with_and_without_compactions(
    tmp_path_factory: pytest.TempPathFactory, before: list, between: list, after: list
) -> None:
    folder = tmp_path_factory.mktemp("histories")
    plain, compacted, kept = folder / "plain", folder / "compacted", folder / "run"
    for scans in (before, between, after):
        for found, gone in scans:
            one = scan(plain, found, gone)
            scan(compacted, found, gone)
        copy = copies.keep(Catalog.open(compacted), kept)
        result = compact(compacted)
        assert shown(Catalog.open(compacted)) == shown(one)
        assert result.rows == len(one.live())
        again = compact(compacted)
        assert (again.dropped, again.bytes_before, again.bytes_after) == (0, result.bytes_after, result.bytes_after)
        # The copy that a run keeps shows the same, before the compaction and grown after it.
        assert shown(Catalog.open(copy)) == shown(one)
        assert shown(Catalog.open(copies.keep(Catalog.open(compacted), kept))) == shown(one)
    assert len(list(compacted.glob("*.parquet"))) <= 2
    shutil.rmtree(folder)


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """Three versions, in each of which a clip changes and one is gone."""
    for found, gone in (({0, 1, 2, 3}, set()), ({1, 4}, {0}), ({2, 5}, {3})):
        scan(tmp_path / "catalog", found, gone)
    return tmp_path / "catalog"


def test_a_version_before_it_is_refused_with_the_first_one_that_is_left(catalog: Path) -> None:
    earlier = Catalog.open(catalog, 2)
    compact(catalog)
    for read in (lambda: Catalog.open(catalog, 2), earlier.live):
        with pytest.raises(UserError, match="was compacted at version 3") as refused:
            read()
        assert refused.value.code == "catalog-version-compacted"
    assert Catalog.open(catalog, 3).version == 3


def test_a_kept_digest_is_that_of_its_rows(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever rows of the catalog were asked for before, in this process or another."""
    monkeypatch.setattr(reader, "_KEEP_DIGEST_FROM_ROWS", 0)
    live = Catalog.open(catalog).live()
    parts = [live, *(live.take(np.arange(len(live)) != i) for i in range(2)), live]
    assert [Catalog.open(catalog).digest_of(rows) for rows in parts] == [rows.digest() for rows in parts]
    assert len({rows.digest() for rows in parts}) == 3


def test_a_kept_digest_is_not_that_of_a_file_that_was_replaced(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a folder was restored from a copy of other contents: the list of parts tells nothing of that."""
    monkeypatch.setattr(reader, "_KEEP_DIGEST_FROM_ROWS", 0)
    before = Catalog.open(catalog).digest()
    file = next(catalog.glob("part-*.parquet"))
    table = pq.read_table(file)
    captions = pa.array(["changed"] * len(table), type=table.schema.field("caption").type)
    pq.write_table(
        table.set_column(table.schema.get_field_index("caption"), table.schema.field("caption"), captions), file
    )
    live = Catalog.open(catalog).live()
    assert Catalog.open(catalog).digest() == live.digest() != before


@pytest.mark.parametrize("small_rows", [0, 1 << 14])
def test_readers_go_on_over_a_compaction(catalog: Path, monkeypatch: pytest.MonkeyPatch, small_rows: int) -> None:
    """A reader that has its rows open, and one that has only read the list of parts."""
    monkeypatch.setattr(part_files, "SMALL_ROWS", small_rows)
    monkeypatch.setattr(reader, "_KEEP_DIGEST_FROM_ROWS", 0)
    expected = shown(Catalog.open(catalog))
    opened, listed = Catalog.open(catalog), Catalog.open(catalog)
    rows = opened.live()
    compact(catalog)
    assert not list(catalog.glob("part-*"))
    assert [opened.live().caption.to_pylist(), opened.live().path.to_pylist()] == [
        [row[name] for row in expected["live"]] for name in ("caption", "path")
    ]
    assert opened.digest_of(rows) == expected["digest"]
    assert shown(listed) == expected


def test_a_copy_of_an_earlier_version_cannot_grow_and_is_left_alone(catalog: Path, tmp_path: Path) -> None:
    first = copies.keep(Catalog.open(catalog, 2), tmp_path / "run")
    before = shown(Catalog.open(first))
    compact(catalog)
    second = copies.keep(Catalog.open(catalog), tmp_path / "run")
    assert second != first
    assert shown(Catalog.open(first)) == before
    scan(catalog, {7}, {1})
    assert copies.keep(Catalog.open(catalog), tmp_path / "run") == second
    assert shown(Catalog.open(second)) == shown(Catalog.open(catalog))


class Killed(BaseException):
    """The process is gone: nothing that handles errors may help."""


@pytest.mark.slow
def test_wherever_it_is_killed_the_catalog_is_whole(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every second call to the disk: the catalog shows the same, grows, and the next compaction completes it."""
    expected, calls, die_at = shown(Catalog.open(catalog)), 0, 10**9

    def come_to(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls >= die_at:
            raise Killed

    unlink = Path.unlink

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        come_to()
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", come_to)
    monkeypatch.setattr(Path, "unlink", unlinked)

    def attempt(number: int) -> int:
        nonlocal calls, die_at
        folder = tmp_path / f"copy-{number}"
        shutil.copytree(catalog, folder)
        calls, die_at = 0, number
        try:
            with storage.guarded(come_to):
                compact(folder)
        except Killed:
            pass
        came, die_at = calls, 10**9
        assert shown(Catalog.open(folder)) == expected
        scan(folder, {9}, {2})
        after = shown(Catalog.open(folder))
        compact(folder)
        assert shown(Catalog.open(folder)) == after
        assert len(list(folder.glob("*.parquet"))) == 2
        return came

    last = attempt(10**9)
    assert last > 8
    for number in range(1, last + 1, 2):
        attempt(number)


def test_the_new_files_are_on_disk_before_the_catalog_names_them(catalog: Path) -> None:
    """With their content and their names, so that a power cut leaves the former catalog or the new one."""
    new = [catalog / part_files.compact_name(3), catalog / part_files.gone_name(3)]
    renamed = []

    def check(synced: durable.Synced, path: Path) -> None:
        renamed.append(path)
        assert all(synced.has_content(file) and synced.has_name(file) for file in new)
        assert len(list(catalog.glob("part-*"))) == 3

    with durable.before_renames(check):
        compact(catalog)
    assert [".catalog.json." in path.name for path in renamed] == [True]


def test_a_damaged_compacted_file_is_named(catalog: Path) -> None:
    compact(catalog)
    file = catalog / part_files.compact_name(3)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"compact-000003\.parquet cannot be read"):
        Catalog.open(catalog).live()


def test_no_changed_byte_of_a_small_table_passes_for_another_value(tmp_path: Path) -> None:
    file, kind = tmp_path / "gone.parquet", reader.TOMBSTONES_SCHEMA
    table = pa.table([range(0, 500, 7)] * len(kind.names), schema=kind)
    part_files.write_tables(file, iter([table]))
    good = file.read_bytes()
    for at in range(4, len(good) - int.from_bytes(good[-8:-4], "little") - 8):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with suppress(UserError):
            assert part_files.read_table(file, kind, len(table)) == table


def test_rows_of_many_small_scans_are_read_at_once_afterwards(tmp_path: Path) -> None:
    for number in range(12):
        scan(tmp_path / "catalog", {number}, set())
    compact(tmp_path / "catalog")
    (file,) = (tmp_path / "catalog").glob("*.parquet")
    metadata = pq.read_metadata(file)
    assert (metadata.num_rows, metadata.num_row_groups) == (12, 1)
