"""One catalog serves several recipes: scans of one leave the datasets of the other alone, and readers never wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import media_makers as media
import pytest
from refused import refused

from reelworks.annexes.quality import run
from reelworks.commands import show
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import ScanProgress, scan_sources
from reelworks.data.catalog.store import compact
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader.catalog_view import rows_of


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Two datasets of two pictures each."""
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(2):
            media.write_picture(tmp_path / name / f"{i}.png", i)
    return [Source(name, tmp_path / name) for name in "ab"]


def test_two_recipes_share_a_catalog(sources: list[Source], tmp_path: Path) -> None:
    folder, (a, b) = tmp_path / "catalog", sources
    scan_sources([a], folder, workers=1)
    before = rows_of(Catalog.open(folder).live(), [a]).digest()
    assert scan_sources([b], folder, workers=1).removed == 0
    (b.root / "0.png").unlink()
    assert scan_sources([b], folder, workers=1).removed == 1
    assert scan_sources([a], folder, workers=1).unchanged == 2
    live = Catalog.open(folder).live()
    assert rows_of(live, [a]).digest() == before  # what a run of the first recipe resumes by
    assert sorted(rows_of(live, [b]).path.to_pylist()) == ["1.png"]


def test_while_a_scan_runs_others_read_the_former_version(sources: list[Source], tmp_path: Path) -> None:
    folder, (a, b) = tmp_path / "catalog", sources
    scan_sources([a], folder, workers=1)
    before, seen = Catalog.open(folder).digest(), []

    def meanwhile(_: ScanProgress) -> None:
        seen.append(Catalog.open(folder).digest())
        with pytest.raises(UserError, match="another scan"):
            scan_sources([a], folder, workers=1)

    scan_sources([b], folder, workers=1, on_progress=meanwhile)
    assert seen
    assert set(seen) == {before}
    assert Catalog.open(folder).digest() != before


@pytest.mark.parametrize("verb", ["scan", "measure", "compact"])
def test_who_has_lost_the_lock_meanwhile_changes_nothing(
    sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Where there are no kernel's locks, a process that was stopped for a minute has lost it to another one."""
    folder, (a, b) = tmp_path / "catalog", sources
    for some in ([a], sources):
        scan_sources(some, folder, workers=1)
    before = {file: file.read_bytes() for file in folder.glob("[!.]*.*")}

    def lose(*_: object) -> int:
        (folder / ".lock").unlink(missing_ok=True)
        return 0

    media.write_picture(b.root / "new.png", 7)
    monkeypatch.setattr(compact, "_num_bytes", lose)
    monkeypatch.setattr(run, "_of_lists", lambda *_: lose() or {})
    verbs: dict[str, Callable[[], object]] = {
        "scan": lambda: scan_sources(sources, folder, workers=1, on_progress=lose),
        "measure": lambda: run.measure_catalog(folder, ["exposure"], workers=1),
        "compact": lambda: compact.compact(folder),
    }
    with refused("lock-lost", "catalog", says="its lock file was removed"):
        verbs[verb]()
    assert {file: file.read_bytes() for file in before} == before


def test_progress_without_a_terminal_is_lines_of_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The speed is that without the start, in which 60 were done."""
    now = iter([0.0, 5.0, 10.0, 12.0, 20.0])
    monkeypatch.setattr(show, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with show.scan_progress() as on_progress:
        for done in (60, 200, 240, 400):
            on_progress(ScanProgress(done, 1000))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "scanning: 200 of 1000 files, 28 files/s, 0:00:29 left",
        "scanning: 400 of 1000 files, 23 files/s, 0:00:26 left",
    ]
