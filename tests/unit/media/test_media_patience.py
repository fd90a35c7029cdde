"""Errors of the storage are waited out and are no clip's fault; errors of the file are neither."""

from __future__ import annotations

import email.utils
import errno
import io
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import fsspec.config
import media_makers as media
import places
import pytest
import s3_server
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image
from refused import refused
from s3fs import S3FileSystem

from reelworks.core import retry
from reelworks.core.file_cache import FileCache
from reelworks.core.shape import Shape
from reelworks.data.catalog.scan import caption_texts, examine, probe_pool
from reelworks.data.catalog.scan.caption_names import NO_FILES
from reelworks.data.checkpoint.config import MirrorConfig
from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.data.media import location, patience, probe, storages
from reelworks.data.media.decode import Request, load
from reelworks.data.media.decode_pool import DecodePool, Failure
from reelworks.data.media.location import Location
from reelworks.data.media.reading import MediaError, NotGivenError

# Reading its first bytes, which nothing is mapped to, fails with EIO as a broken disk does.
BROKEN_DISK = Path("/proc/self/mem")

pytestmark = pytest.mark.skipif(not BROKEN_DISK.exists(), reason="no file here that cannot be read")


def request(path: Path | Location) -> Request:
    return Request(path, path.suffix == ".png", Shape(1, 16, 16))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each pause, which takes no time."""
    taken: list[float] = []
    _pause_by(taken.append, monkeypatch)
    return taken


def _pause_by(pause: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        retry, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic)
    )  # other threads still sleep


@pytest.mark.parametrize("name", ["clip.mp4", "picture.png"])
def test_an_error_that_stays_is_told_after_four_tries(tmp_path: Path, pauses: list[float], name: str) -> None:
    places.link(tmp_path / name, BROKEN_DISK)
    with pytest.raises(NotGivenError, match=r"^the storage does not give it: \[Errno 5\] Input/output error"):
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

    _pause_by(pause, monkeypatch)
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


@pytest.mark.parametrize("name", ["clip.mp4", "picture.png"])
@pytest.mark.parametrize("damage", [_missing, _folder, _empty, _noise, _half])
def test_a_verdict_on_the_file_is_given_at_once(
    tmp_path: Path, pauses: list[float], name: str, damage: Callable[[Path], None]
) -> None:
    (tmp_path / "other").touch()
    damage(tmp_path / name)
    with pytest.raises(MediaError) as told:
        load(request(tmp_path / name))
    assert not isinstance(told.value, NotGivenError)
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


def test_a_question_that_took_long_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a storage that is away then asked for as long again; what is asked meanwhile has its error."""
    now, asked = [0.0], list[float]()
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: now[0]))

    def silent() -> None:
        asked.append(now[0])
        now[0] += 30
        raise TimeoutError(errno.ETIMEDOUT, "silent")

    ask = retry.Asked()
    for _ in range(40):
        with pytest.raises(TimeoutError, match="silent"):
            ask(silent)
        now[0] += 1
    assert asked == [0, 31, 62, 93, 124, 184]


@pytest.mark.parametrize(
    ("error", "is_storages"),
    [
        *((OSError(code, "x"), True) for code in (errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM, errno.EMFILE)),
        *(
            (OSError(code, "x"), False)
            for code in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EFBIG)
        ),
        (OSError("image file is truncated"), False),
        (storages.ChangedError("another one"), False),
        (av.error.OSError(errno.EIO, "a demuxer's word"), False),
        (ValueError(errno.EIO), False),
    ],
)
def test_which_errors_say_nothing_about_a_file(error: Exception, is_storages: bool) -> None:
    assert storages.is_of_storage(error) == is_storages
    if isinstance(error, OSError):
        is_unread = is_storages or isinstance(error, storages.ChangedError)  # which the next scan reads
        assert storages.problem(error).startswith(storages.UNREACHED) == is_unread


def test_a_caption_that_is_not_given_is_not_lost(tmp_path: Path) -> None:
    """Not where its file cannot be read, and not where its folder cannot be listed."""
    places.link(tmp_path / "a.txt", BROKEN_DISK)
    with pytest.raises(OSError, match=r"its caption a\.txt") as told:
        caption_texts.read(tmp_path / "a.mp4", caption_texts.files_beside(tmp_path / "a.mp4"))
    assert storages.is_of_storage(told.value)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        caption_texts.files_beside(tmp_path / "loop" / "a.mp4")


@pytest.mark.parametrize("raised", [ValueError("odd"), av.error.InvalidDataError(1, "odd"), probe.ProbeError("odd")])
def test_a_decoders_word_counts_for_bytes_that_came(tmp_path: Path, raised: Exception) -> None:
    places.link(tmp_path / "a.mp4", BROKEN_DISK)
    with pytest.raises(OSError, match="Input/output") as told, location.local(tmp_path / "a.mp4"):
        raise raised
    assert storages.is_of_storage(told.value)
    _write(tmp_path / "b.mp4")
    with pytest.raises(type(raised)), location.local(tmp_path / "b.mp4"):
        raise raised


class _Broken(io.RawIOBase):
    """A file on a disk that is broken behind its first piece."""

    pieces = 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        self.pieces += 1
        if self.pieces > 1:
            raise OSError(errno.EIO, "Input/output error")
        return len(into)


def test_bytes_that_do_not_come_later_are_asked_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "opened", lambda file: io.BufferedReader(_Broken(), location._PIECE_BYTES))
    with pytest.raises(OSError, match="Input/output"), location.local(tmp_path / "a.mp4"):
        raise ValueError("odd")


def test_a_scan_says_of_a_file_that_is_not_given_nothing_but_that(tmp_path: Path, pauses: list[float]) -> None:
    places.link(tmp_path / "a.mp4", BROKEN_DISK)
    (finding,) = examine.examine([examine.FileRequest(tmp_path / "a.mp4", NO_FILES, True, "")])
    assert finding.error == "cannot be read now: Input/output error"
    assert finding.fingerprint == ""


def test_what_hangs_is_a_decoder_only_if_the_bytes_are_there(tmp_path: Path, cache: Path) -> None:
    _write(tmp_path / "a.png")
    here, far = tmp_path / "a.png", Location("memory://hangs/a.png", "a.png", size=7, version=1)
    for file, opens, is_decoder in ((here, True, True), (here, False, False), (far, True, False)):
        for reason in ("it took more than 120 s and was stopped", probe_pool.CRASHED):
            (finding,) = examine.failed([examine.FileRequest(file, NO_FILES, opens, "")], reason)
            blames = is_decoder or reason == probe_pool.CRASHED
            assert finding.error == (reason if blames else f"cannot be read now: {reason}")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache that keeps no copy."""
    monkeypatch.setenv("REELWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REELWORKS_CACHE_GB", "1e-9")
    return tmp_path / "cache"


class _Rights:
    """Rights to read of a storage in memory with five pictures, which may end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: Callable[[str], bool] = lambda path: False
        self.error: Callable[[str], OSError] = PermissionError
        Image.new("RGB", (16, 16), 7).save(folder / "a.png")
        data = (folder / "a.png").read_bytes()
        self.files = [Location(f"memory://rights/{i}.png", f"{i}.png", size=len(data)) for i in range(5)]
        for file in self.files:
            MemoryFileSystem().pipe_file(file.file.removeprefix("memory:/"), data)
            version = storages.version_of(storages.remote_info(*storages.filesystem(file.file)))
            self.files[self.files.index(file)] = replace(file, version=version)
        for name in ("get_file", "cat_file"):
            monkeypatch.setattr(MemoryFileSystem, name, self._guarded(getattr(MemoryFileSystem, name)))

    def _guarded(self, read: Callable[..., object]) -> Callable[..., object]:
        def work(fs: object, path: str, *rest: object, **options: object) -> object:
            if self.refused(path):
                raise self.error(path)
            return read(fs, path, *rest, **options)

        return work


@pytest.fixture
def rights(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Rights:
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,))
    monkeypatch.setattr(patience, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(patience, "_LOOK_SECONDS", 0.01)
    return _Rights(tmp_path, monkeypatch)


@contextmanager
def decoding(
    seconds: float, leaves: Callable[[], bool] = lambda: False
) -> Iterator[Callable[[Sequence[Path | Location]], list[object]]]:
    with closing(DecodePool(0, 60.0, patience_seconds=seconds, leaves=leaves)) as pool:
        yield lambda files: [job.result() for job in [pool.submit(request(file)) for file in files]]


@pytest.mark.parametrize("alone", ["0", "4", "014"])
def test_clips_that_are_not_given_beside_others_are_to_blame(rights: _Rights, alone: str) -> None:
    """Also if they are the first of all, more than there are threads, or asked for last."""
    rights.refused = lambda path: path[-5] in alone
    with decoding(60.0) as decode:
        for _ in range(2):
            found = decode(rights.files)
            failures = {i: one.reason for i, one in enumerate(found) if isinstance(one, Failure)}
            assert "".join(map(str, failures)) == alone
            assert all("the storage refuses it" in reason for reason in failures.values())


class _TooManyError(Exception):
    """As libraries of storages raise it."""

    status = 429

    def __init__(self, _: str = "", *, after: str = "1") -> None:
        super().__init__()
        self.headers = {"Retry-After": after}


def _busy(seconds: float | None) -> retry.BusyError:
    error = retry.BusyError(errno.EBUSY, "too many")
    error.seconds = seconds
    return error


_NOON, _LATER = "Tue, 01 Dec 2026 12:00:00 GMT", "Tue, 01 Dec 2026 12:01:30 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": _LATER, "date": _NOON}, 90.0),
        ({"retry-after": _LATER, "date": "noon"}, 91.0),
        ({"retry-after": _LATER, "date": ""}, 91.0),
        ({"retry-after": _LATER}, 91.0),
        ({"retry-after": "soon", "date": _NOON}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-1"}, None),
        ({"date": _NOON}, None),
        ({}, None),
    ],
)
def test_the_time_that_a_server_asks_for_is_understood_as_far_as_it_says_it(
    headers: dict[str, str], seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own clock, or if it does not tell that, by the one here."""
    here = email.utils.parsedate_to_datetime(_NOON).timestamp() - 1
    monkeypatch.setattr(retry, "time", SimpleNamespace(time=lambda: here))
    assert retry.asked_seconds(headers) == seconds


@pytest.mark.parametrize("error", [partial(OSError, errno.EBUSY), _TooManyError])
def test_a_busy_storage_that_gives_some_clips_loses_none(
    error: Any, rights: _Rights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that names a time, though nobody waits for that."""
    asked = Counter[str]()
    monkeypatch.setattr(retry, "_BUSY_SECONDS", ContextVar("none", default=0.0))
    monkeypatch.setattr(retry, "asked_seconds", lambda headers: 0.001 if headers else None)
    rights.refused, rights.error = lambda path: asked.update([path]) or asked[path] < 4, error
    with decoding(60.0) as decode:
        assert not any(isinstance(one, Failure) for one in decode(rights.files))


def test_a_clip_is_read_when_a_storage_that_limits_the_rate_of_requests_says(
    rights: _Rights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not away meanwhile."""
    asked = list[float]()
    monkeypatch.setattr(retry, "asked_seconds", lambda headers: 0.05)
    rights.refused = lambda path: len(asked) < 4 and not asked.append(time.monotonic())
    rights.error = _TooManyError  # type: ignore[assignment]
    with decoding(60.0) as decode:
        assert not any(isinstance(one, Failure) for one in decode(rights.files))
    assert len(asked) == 4
    assert not any("gives no clip" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        ("120", 120.0),
        (email.utils.formatdate(4e9, usegmt=True), 4e9),
        ("Fri, 13 Feb 2009 23:31:30 GMT", 1234567890.0),
        ("soon", None),
        ("", None),
    ],
)
def test_when_a_storage_may_be_asked_again(after: str, seconds: float | None) -> None:
    """Seconds, or a date by HTTP, which may be past; of a library that raises an error of its own, its cause says it."""
    refusal, of_library = _TooManyError(after=after), OSError("refused")
    of_library.__cause__ = refusal
    for error in (refusal, of_library):
        with pytest.raises(retry.BusyError) as told, storages.reached():
            raise error
        now = time.time() if seconds and seconds > 1e3 else 0.0
        assert told.value.seconds == (None if seconds is None else pytest.approx(seconds - now, abs=5))
        assert storages.is_of_storage(told.value)


@pytest.mark.parametrize("clock", [-1e6, 0.0, 1e6])
def test_a_date_is_by_the_clock_of_the_storage(clock: float) -> None:
    """A machine whose clock is behind would wait for days, or give up at once, and one that is ahead not at all."""
    now, then = (email.utils.formatdate(time.time() + clock + more, usegmt=True) for more in (0.0, 30.0))
    refusal = _TooManyError(after=then)
    refusal.headers["Date"] = now
    with pytest.raises(retry.BusyError) as told, storages.reached():
        raise refusal
    assert told.value.seconds == pytest.approx(30.0, abs=1)


def test_nobody_asks_a_storage_before_the_time_that_it_names() -> None:
    """Nor do as many at once as before; who would have to wait for longer than is waited is refused unasked."""
    pace, asked = retry.Pace("storage"), list[float]()
    start, half = threading.Barrier(8), threading.Barrier(4)

    def work() -> int:
        asked.append(time.monotonic())
        if len(asked) <= 8:
            start.wait(5)
            raise _busy(0.5)
        half.wait(5)  # refusals that came at once count once
        time.sleep(0.01)
        return 1

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lambda _: pace(work), range(8))) == 8
    asked.sort()
    assert asked[8] - asked[7] >= 0.49
    assert sum(when < asked[8] + 0.005 for when in asked[8:]) <= 4
    tried = list[int]()

    def refuses() -> None:
        tried.append(1)
        raise _busy(3600.0)

    for _ in range(2):
        with pytest.raises(retry.BusyError, match=r"^\[Errno 16\] too many; it may be asked again in 3600 s$"):
            pace(refuses)
    assert len(tried) == 1


def test_a_storage_that_has_answered_is_waited_for_as_long_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And after questions of a scan, which have more time, no longer than before them."""
    monkeypatch.setattr(retry, "_BUSY_SECONDS", ContextVar("short", default=0.2))
    pace, answers = retry.Pace("storage"), iter([_busy(0.01), None, _busy(0.1), None, *[_busy(0.4)] * 9])

    def work() -> None:
        if (answer := next(answers)) is not None:
            raise answer

    pace(work)
    time.sleep(0.25)
    pace(work)
    retry.Asked()(lambda: None)
    with pytest.raises(retry.BusyError):
        pace(work)
    assert len([*answers]) == 8


@pytest.mark.parametrize("seconds", [None, 0.0, -5.0])
def test_a_storage_that_names_no_time_to_come_is_not_asked_at_once(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_UNTOLD_SECONDS", (0.02, 1.0))
    asked = list[float]()

    def work() -> None:
        asked.append(time.monotonic())
        if len(asked) < 4:
            raise _busy(seconds)

    retry.Pace("storage")(work)
    assert 0.02 + 0.02 + 0.04 <= asked[3] - asked[0] < 1.0  # as long again as it has refused, and no longer


def test_no_clip_is_to_blame_for_a_storage_that_is_back_in_time(
    rights: _Rights, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    rights.refused = lambda path: len(asked) < 40 and not asked.append(path)
    with caplog.at_level("INFO"), decoding(60.0) as decode:
        assert not any(isinstance(one, Failure) for one in decode(rights.files))
    # A thread that was refused may say it again while another one has a clip already.
    warning, *_ = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert "memory://rights gives no clip" in warning
    assert "waiting up to 1 minutes" in warning
    assert "memory://rights gives clips again" in caplog.messages


def test_a_storage_that_is_away_again_is_waited_for_as_long_again(
    rights: _Rights, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(patience, "time", clock)
    waiting = patience.Patience(60.0, lambda: False)
    for file in rights.files:
        waiting.ask(file)
    for refuses in (True, False, True):
        rights.refused = lambda path, refuses=refuses: refuses
        assert waiting.wait(rights.files[0], "refused") != refuses
        now[0] += 50
    with refused("storage-away"):
        for _ in range(3):
            waiting.wait(rights.files[0], "refused")
            now[0] += 50


@pytest.mark.parametrize("ends", ["time", "signal"])
def test_a_storage_that_stays_away_is_no_failure_of_a_clip(rights: _Rights, ends: str) -> None:
    with decoding(0.05 if ends == "time" else 600.0, lambda: ends == "signal") as decode:
        assert not isinstance(decode(rights.files[:1])[0], Failure)
        rights.refused = lambda path: True
        with refused("storage-away", says=r"memory://rights/.\.png: .*refuses it"):
            decode(rights.files)


@pytest.mark.parametrize("leaves_folder", [True, False])
def test_a_mount_that_is_gone_is_waited_for(rights: _Rights, tmp_path: Path, leaves_folder: bool) -> None:
    mount, away = tmp_path / "media" / "disk", tmp_path / "away"
    mount.mkdir(parents=True)
    (tmp_path / "a.png").rename(mount / "a.png")
    mount.rename(away)
    if leaves_folder:
        mount.mkdir()

    def comes_back() -> bool:
        if away.exists():
            with suppress(FileNotFoundError):
                mount.rmdir()
            away.rename(mount)
        return False

    with decoding(60.0, comes_back) as decode:
        assert not isinstance(decode([mount / "a.png"])[0], Failure)
        assert decode([mount / "b.png"]) == [Failure("No such file or directory")]  # beside another: it was removed


@pytest.mark.parametrize("inside", ["", "0/1", "media"])
def test_a_clip_that_is_removed_from_a_folder_of_its_own_is_no_mount(
    rights: _Rights, tmp_path: Path, inside: str
) -> None:
    """The clips that are nearest to it tell: all that a mount holds is gone with it."""
    clips = [tmp_path / "media" / f"clip_{i}" / inside / "video.png" for i in range(3)]
    for clip in clips:
        clip.parent.mkdir(parents=True)
        shutil.copy(tmp_path / "a.png", clip)
    with decoding(60.0) as decode:
        decode([*clips, tmp_path / "a.png"])
        clips[1].unlink()
        (failure,) = decode([clips[1]])
        assert isinstance(failure, Failure)
        assert "is it mounted?" in failure.reason
    for clip in clips:
        clip.unlink(missing_ok=True)
    with decoding(0.05) as decode, refused("storage-away"):
        decode([*clips, tmp_path / "a.png"])


def test_a_mount_beside_others_is_missed(rights: _Rights, tmp_path: Path) -> None:
    """Though a folder elsewhere still has clips."""
    clips = [tmp_path / mount / f"{i}.png" for mount in ("one", "two") for i in range(3)]
    for clip in clips:
        clip.parent.mkdir(exist_ok=True)
        shutil.copy(tmp_path / "a.png", clip)
    with decoding(0.05) as decode:
        decode(clips)
        for clip in clips[:3]:
            clip.unlink()
        with refused("storage-away", says="one"):
            decode(clips[:1])


def test_of_many_clips_a_few_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each may take as long as a storage that is silent."""
    asked: list[Path] = []
    monkeypatch.setattr(location, "answers", asked.append)
    waits = patience.Patience(0.0, lambda: False)
    for i in range(100):
        waits.ask(tmp_path / f"{i}.png")
    with refused("storage-away"):
        waits.wait(tmp_path / "0.png", "it is silent")
    assert 1 < len(asked) < 12


_LEAVES = """
import time
from reelworks.core import retry
from reelworks.core.shape import Shape
from reelworks.data.media.decode import Request
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.location import Location

retry.WAITS_SECONDS = (0.0,)
pool = DecodePool(0, 60.0, patience_seconds=600.0)
pool.submit(Request(Location("http://127.0.0.1:9/a.mp4", "a.mp4", size=9), False, Shape(1, 16, 16)))
while not pool._patience._since:
    time.sleep(0.01)
raise KeyboardInterrupt
"""


def test_a_program_that_is_stopped_ends_though_a_storage_is_waited_for() -> None:
    """At its exit the interpreter joins the threads that wait."""
    command = [sys.executable, "-c", _LEAVES]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True, encoding="utf-8", check=False)
    assert "gives no clip" in done.stderr
    assert "KeyboardInterrupt" in done.stderr


def test_a_cache_that_cannot_be_written_is_no_failure_of_a_clip(
    rights: _Rights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("REELWORKS_CACHE", str(tmp_path / "a file" / "cache"))
    for seconds in (0.0, 60.0):
        with decoding(seconds) as decode, refused("file-unwritable", "REELWORKS_CACHE"):
            decode(rights.files[:1])


@pytest.mark.parametrize(
    ("protocol", "options", "key"), [("https", "client_kwargs", "timeout"), ("s3", "config_kwargs", "retries")]
)
def test_limits_of_ones_own_for_a_client_hold(
    monkeypatch: pytest.MonkeyPatch, protocol: str, options: str, key: str
) -> None:
    """Those of fsspec's own configuration."""
    file = f"{protocol}://bucket/a.png"
    usual = getattr(storages.filesystem(file)[0], options)[key]
    monkeypatch.setitem(fsspec.config.conf, protocol, {options: {key: "my own"}})
    assert getattr(storages.filesystem(file)[0], options)[key] == "my own" != usual


def test_headers_of_ones_own_are_sent_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as rights to read; what is asked for is still the file as it is, and not packed."""
    own = {"Authorization": "Bearer x"}
    monkeypatch.setitem(fsspec.config.conf, "https", {"client_kwargs": {"headers": own}})
    sent = storages.filesystem("https://host/a.png")[0].client_kwargs["headers"]
    assert sent == own | {"Accept-Encoding": "identity"}


@pytest.mark.parametrize(
    "client_of", [lambda url: storages.filesystem(url)[0], lambda url: RemoteFilesystem.open(MirrorConfig(url=url))._fs]
)
def test_clients_are_those_of_the_variables_as_they_are_now(
    client_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a notebook corrects its credentials after an error; files that follow one another share a client."""
    first = client_of("https://host/a.png")
    assert client_of("https://host/b.png") is first
    monkeypatch.setitem(fsspec.config.conf, "https", {})
    monkeypatch.setenv("FSSPEC_HTTPS", '{"encoded": true}')
    assert client_of("https://host/a.png") is not first
    assert client_of("https://host/a.png").encoded
    asked = client_of("s3://bucket/a.png")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert client_of("s3://bucket/a.png") is not asked


def test_workers_are_kept_while_the_variables_are_those_that_they_got(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(DecodePool(1, 1.0)) as workers, closing(DecodePool(0, 1.0)) as threads:
        assert workers.may_be_used
        monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
        assert not workers.may_be_used
        assert threads.may_be_used


def test_copies_lie_where_the_variables_say_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "one"):
        monkeypatch.setenv("REELWORKS_CACHE", str(tmp_path / name))
        assert FileCache.from_environment().folder == tmp_path / name
    assert FileCache.from_environment() is FileCache.from_environment()  # which counts what it has added


@pytest.mark.parametrize("named", ["http", pytest.param("s3", marks=pytest.mark.slow(reason="five tries"))])
def test_a_client_ends_a_question_to_a_silent_storage(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that says nothing may do later, before what watches for decoders that hang."""
    monkeypatch.setattr(storages, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(S3FileSystem, "read_timeout", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        s3_server.lead_to(f"http://{address}", monkeypatch)
        file = f"http://{address}/a.png" if named == "http" else "s3://bucket/a.png"
        began = time.monotonic()
        with pytest.raises(OSError, match=r".") as told:
            storages.remote_info(*storages.filesystem(file))
        assert retry.is_transient(told.value)
        assert time.monotonic() - began < 10
