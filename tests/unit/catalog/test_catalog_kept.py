"""A kept catalog is what the original was, whatever becomes of the original, and takes no room where links can be made."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import catalog_rows
import numpy as np
import pyarrow as pa
import pytest

from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.catalog.store import copies, kept_measures
from reelworks.data.catalog.store.schema import SCHEMA
from reelworks.data.catalog.store.store import Catalog

SHOT = {"num_frames": 48, "height": 480, "width": 640, "duration_seconds": 2.0, "caption": "a shot"}
ROW = catalog_rows.row(0, SHOT | {"dataset": "d"})


class Killed(BaseException):
    """The process is gone: nothing that handles errors may help."""


def scanned(folder: Path, *uids: int, retired: int | None = None) -> Catalog:
    """Do as a scan that finds new clips, and one that is gone."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [ROW | {"uid": uid, "path": f"{uid}.mp4", "group": f"{uid}.mp4", "fingerprint": f"{uid}"} for uid in uids]
    gone = np.array([] if retired is None else [retired], dtype=np.int64)
    return Catalog.open_or_new(folder).append(pa.Table.from_pylist(rows, schema=SCHEMA), gone, [])


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """Six clips in two parts; the second part retires clip 1."""
    scanned(tmp_path / "catalog", 10, 11, 12)
    scanned(tmp_path / "catalog", 13, 14, 15, retired=1)
    return tmp_path / "catalog"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The folder of kept catalogs."""
    return tmp_path / "run" / "coverage"


@pytest.fixture
def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", link)


def content(catalog: Catalog) -> dict[str, Any]:
    """All that a catalog shows, in each of its versions."""
    versions = [Catalog.open(catalog.path, v) for v in range(catalog.version + 1)]
    return {
        "parts": catalog.parts,
        "rows": catalog.all_rows().to_table().to_pylist(),
        "live": [version.live().uid.tolist() for version in versions],
        "digest": [version.digest() for version in versions],
    }


def shown(catalog: Catalog) -> tuple[object, str]:
    """The same in short."""
    return catalog.parts, catalog.digest()


def parts(folder: Path) -> dict[str, int]:
    """Parquet files by name, each with the number that the file system knows its content by."""
    return {file.name: file.stat().st_ino for file in folder.glob("*.parquet")}


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_parts_are_shared_and_the_list_of_them_is_not(original: Path, there: Path) -> None:
    place = copies.keep(Catalog.open(original), there)
    assert place == there / "catalog-000"
    assert content(Catalog.open(place)) == content(Catalog.open(original))
    assert parts(place) == parts(original)
    assert len(parts(place)) == 3
    listed = place / "catalog.json"
    assert listed.stat().st_ino != (original / "catalog.json").stat().st_ino
    assert names(there) == ["catalog-000"]


def test_it_grows_with_the_original(original: Path, there: Path) -> None:
    place = copies.keep(Catalog.open(original), there)
    before = content(Catalog.open(place))
    scanned(original, 16, retired=3)
    assert content(Catalog.open(place)) == before  # until it is kept again
    assert copies.keep(Catalog.open(original), there) == place
    assert content(Catalog.open(place)) == content(Catalog.open(original))
    assert parts(place) == parts(original)


def test_an_earlier_version_is_kept_already(original: Path, there: Path) -> None:
    """As where another process has scanned since, or training goes back to a former segment's catalog."""
    place = copies.keep(Catalog.open(original), there)
    before = content(Catalog.open(place))
    assert copies.keep(Catalog.open(original, 1), there) == place
    assert content(Catalog.open(place)) == before


def test_only_the_parts_of_its_version_are_kept(original: Path, there: Path) -> None:
    place = copies.keep(Catalog.open(original, 1), there)
    assert content(Catalog.open(place)) == content(Catalog.open(original, 1))
    assert parts(place).keys() == {"part-000000.parquet"}


@pytest.mark.parametrize("how", [shutil.rmtree, lambda path: path.rename(path.with_name("elsewhere"))])
def test_it_outlives_the_original(original: Path, there: Path, how: Callable[[Path], object]) -> None:
    place = copies.keep(Catalog.open(original), there)
    before = content(Catalog.open(original))
    how(original)
    assert content(Catalog.open(place)) == before


def test_a_catalog_that_was_moved_is_the_same_one(original: Path, there: Path) -> None:
    place = copies.keep(Catalog.open(original), there)
    moved = original.rename(original.with_name("elsewhere"))
    scanned(moved, 16)
    assert copies.keep(Catalog.open(moved), there) == place
    assert content(Catalog.open(place)) == content(Catalog.open(moved))


@pytest.mark.parametrize("lost", ["catalog/catalog.json", "catalog"])
@pytest.mark.quick_cases(1)
def test_a_catalog_made_anew_is_kept_beside_the_former(original: Path, there: Path, tmp_path: Path, lost: str) -> None:
    """Whether only the list in its folder was removed, whose parts the next scan replaces, or all of it."""
    first = copies.keep(Catalog.open(original), there)
    before = content(Catalog.open(first))
    storage.rmtree(tmp_path / lost)
    scanned(original, 20, 21, 22)
    scanned(original, 23)
    second = copies.keep(Catalog.open(original), there)
    assert second == there / "catalog-001"
    assert content(Catalog.open(first)) == before
    assert content(Catalog.open(second)) == content(Catalog.open(original))
    scanned(original, 24)
    assert copies.keep(Catalog.open(original), there) == second
    assert content(Catalog.open(second)) == content(Catalog.open(original))


def test_a_kept_catalog_that_cannot_be_read_is_left_alone(original: Path, there: Path) -> None:
    first = copies.keep(Catalog.open(original), there)
    (first / "catalog.json").write_text("torn", encoding="utf-8")
    second = copies.keep(Catalog.open(original), there)
    assert second == there / "catalog-001"
    assert content(Catalog.open(second)) == content(Catalog.open(original))
    assert (first / "catalog.json").read_text(encoding="utf-8") == "torn"
    with pytest.raises(UserError):
        Catalog.open(first)


@pytest.mark.usefixtures("without_links")
def test_where_no_link_can_be_made_it_is_copied(original: Path, there: Path) -> None:
    place = copies.keep(Catalog.open(original), there)
    scanned(original, 16)
    copies.keep(Catalog.open(original), there)
    assert content(Catalog.open(place)) == content(Catalog.open(original))
    assert parts(place).keys() == parts(original).keys()
    assert not set(parts(place).values()) & set(parts(original).values())
    before = content(Catalog.open(place))
    for file in original.glob("*.parquet"):
        file.write_bytes(b"written over")
    assert content(Catalog.open(place)) == before


def test_a_disk_that_takes_neither_link_nor_copy_is_told_and_nothing_is_half_kept(
    original: Path, there: Path, without_links: None
) -> None:
    def guard(call: str, path: Path) -> None:
        if call == "write" and path.suffix == ".parquet":
            raise OSError(errno.ENOSPC, "no space left")

    with storage.guarded(guard), pytest.raises(OSError, match="no space left"):
        copies.keep(Catalog.open(original), there)
    assert not (there / "catalog-000").exists()
    assert content(Catalog.open(copies.keep(Catalog.open(original), there)))["live"][-1] == [10, 12, 13, 14, 15]


@pytest.mark.usefixtures("without_links")
def test_a_part_that_was_copied_by_half_is_copied_again(original: Path, there: Path) -> None:
    copies.keep(Catalog.open(original, 1), there)

    def kill(call: str, path: Path) -> None:
        if call == "write" and path.suffix == ".parquet":
            raise Killed

    with storage.guarded(kill), pytest.raises(Killed):
        copies.keep(Catalog.open(original), there)
    assert (there / "catalog-000" / "part-000001.parquet").exists()
    assert content(Catalog.open(copies.keep(Catalog.open(original), there))) == content(Catalog.open(original))


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.quick_cases(1)
def test_wherever_keeping_dies_the_next_call_completes_it(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool, grows: bool
) -> None:
    """For each call to the disk: what is kept can be read, as a version of the original, and is mended then."""
    link, calls, die_at = os.link, 0, 10**9

    def come_to(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls >= die_at:
            raise Killed

    def linked(source: Path, target: Path) -> None:
        if not links:
            raise OSError(errno.EXDEV, "another file system")
        come_to()
        link(source, target)

    monkeypatch.setattr(os, "link", linked)
    catalog = Catalog.open(original)
    expected, former = shown(catalog), shown(Catalog.open(original, 1))

    def attempt(number: int) -> int:
        nonlocal calls, die_at
        there = tmp_path / f"coverage-{number}"
        if grows:
            copies.keep(Catalog.open(original, 1), there)
        calls, die_at = 0, number
        try:
            with storage.guarded(come_to):
                copies.keep(catalog, there)
        except Killed:
            pass
        came, die_at = calls, 10**9
        if (there / "catalog-000").exists():
            assert shown(Catalog.open(there / "catalog-000")) in ([expected, former] if grows else [expected])
        else:
            assert not grows
        assert shown(Catalog.open(copies.keep(catalog, there))) == expected
        assert names(there) == ["catalog-000"]
        return came

    last = attempt(10**9)
    assert last > 6
    for number in range(1, last + 1):
        attempt(number)


def test_what_was_measured_in_a_large_file_is_not_that_of_one_written_later(tmp_path: Path) -> None:
    """Of a large file only some blocks are read, which another one may share; a small one is known by its content.

    The time of an archive is not that of its members, and their fingerprints have none.
    """
    prints = ["9-", "9-5-", "9-"]
    rows = [ROW | {"uid": u, "fingerprint": p + "a" * 32, "size_bytes": 9 + (u << 30)} for u, p in enumerate(prints)]
    catalog = Catalog.open_or_new(tmp_path).append(
        pa.Table.from_pylist(rows, schema=SCHEMA), np.array([], np.int64), []
    )
    live = catalog.live()
    later = live.replaced(mtime_ns=live.mtime_ns + 1)
    assert (kept_measures.keys_of(live) == kept_measures.keys_of(later)).tolist() == [True, False, True]
