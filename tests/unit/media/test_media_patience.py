"""Errors of the storage are waited out before a clip is given up; errors of the file are not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import media_makers as media
import places
import pytest
from PIL import Image

from reelworks.core import retry
from reelworks.core.shape import Shape
from reelworks.data.media.decode import MediaError, Request, load

# Reading its first bytes, which nothing is mapped to, fails with EIO as a broken disk does.
BROKEN_DISK = Path("/proc/self/mem")

pytestmark = pytest.mark.skipif(not BROKEN_DISK.exists(), reason="no file here that cannot be read")


def request(path: Path) -> Request:
    return Request(path, path.suffix == ".png", Shape(1, 16, 16))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each pause, which takes no time."""
    taken: list[float] = []
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=taken.append))  # other threads still sleep
    return taken


@pytest.mark.parametrize("name", ["clip.mp4", "picture.png"])
def test_an_error_that_stays_is_told_with_the_number_of_tries(tmp_path: Path, pauses: list[float], name: str) -> None:
    places.link(tmp_path / name, BROKEN_DISK)
    with pytest.raises(MediaError, match=r"^I/O error, 4 tries: \[Errno 5\] Input/output error"):
        load(request(tmp_path / name))
    assert len(pauses) == 3
    assert pauses == sorted(pauses)


@pytest.mark.parametrize("name", ["clip.mp4", "picture.png"])
@pytest.mark.parametrize("tries", [2, 4])
def test_an_error_that_passes_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tries: int
) -> None:
    good, path = tmp_path / f"good-{name}", tmp_path / name
    _write(good)
    places.link(path, BROKEN_DISK)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == tries - 1:
            path.unlink()
            places.link(path, good)

    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=pause))
    assert (load(request(path)) == load(request(good))).all()
    assert len(pauses) == tries - 1


def _write(path: Path) -> None:
    if path.suffix == ".png":
        Image.new("RGB", (32, 32), 7).save(path)
    else:
        media.write(path, media.numbered(4))


def _missing(path: Path) -> None:
    pass


def _folder(path: Path) -> None:
    path.mkdir()


def _empty(path: Path) -> None:
    path.touch()


def _noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 20)


def _half(path: Path) -> None:
    _write(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _forbidden(path: Path) -> None:
    if places.MAY_ALL:
        pytest.skip("root may read everything")
    _write(path)
    path.chmod(0)


@pytest.mark.parametrize("name", ["clip.mp4", "picture.png"])
@pytest.mark.parametrize("damage", [_missing, _folder, _empty, _noise, _half, _forbidden])
def test_a_verdict_on_the_file_is_given_at_once(
    tmp_path: Path, pauses: list[float], name: str, damage: Callable[[Path], None]
) -> None:
    damage(tmp_path / name)
    with pytest.raises(MediaError) as told:
        load(request(tmp_path / name))
    assert "I/O" not in str(told.value)
    assert not pauses


@pytest.mark.parametrize(
    ("code", "may"),
    [
        *((code, True) for code in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ECONNRESET)),
        *((code, False) for code in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.EINVAL)),
        (None, False),
    ],
)
def test_which_errors_may_pass(code: int | None, may: bool) -> None:
    assert retry.is_transient(OSError(code, "storage says")) == may
    assert not retry.is_transient(ValueError(code))


def test_each_attempt_waits_as_long_as_it_is_told() -> None:
    """And what ends a wait ends the attempts."""
    waited: list[float] = []

    def fails() -> None:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        retry.with_retries(fails, waits_seconds=(0.5, 2.0), wait=waited.append)
    assert waited == [0.5, 2.0]
    with pytest.raises(ZeroDivisionError):
        retry.with_retries(fails, waits_seconds=(0.5, 2.0), wait=lambda seconds: 1 / 0)
