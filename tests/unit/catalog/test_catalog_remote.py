"""Clips in a bucket of a real S3 server are those of the same files on disk."""

from __future__ import annotations

import base64
import errno
import ftplib
import gzip
import http.server
import importlib
import io
import itertools
import os
import re
import stat
import sys
import tarfile
import threading
import time
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import fsspec
import media_makers as media
import numpy as np
import pytest
import s3_server
import s3fs.core
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image
from refused import refused

from reelworks.core import retry
from reelworks.core.errors import UserError
from reelworks.core.file_cache import FileCache
from reelworks.core.shape import Shape
from reelworks.data.catalog.config import DatasetConfig, Source
from reelworks.data.catalog.scan import caption_texts
from reelworks.data.catalog.scan.archive import list_archive
from reelworks.data.catalog.scan.remote import list_address, look_up
from reelworks.data.catalog.scan.scan import ScanResult, scan_sources
from reelworks.data.catalog.store import companions
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import location, storages
from reelworks.data.media.decode import Request, load
from reelworks.data.media.reading import MediaError


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server.serve() as address:
        yield address


@pytest.fixture
def cache(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of 60 kB, and the variables that lead to the server."""
    s3_server.lead_to(endpoint, monkeypatch)
    for name, value in {"REELWORKS_CACHE": str(tmp_path / "cache"), "REELWORKS_CACHE_GB": "6e-5"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    for i in range(4):
        media.write_video(folder / f"clip {i}.mp4", num_frames=4 + i)
        (folder / f"clip {i}.txt").write_text(f"caption {i}", encoding="utf-8")
    media.write_picture(folder / "sub" / "e.png")
    (folder / "cut.mp4").write_bytes((folder / "clip 0.mp4").read_bytes()[:600])
    with tarfile.open(folder / "shard.tar", "w") as archive:
        archive.add(folder / "clip 1.mp4", "one.mp4")
        archive.add(folder / "clip 1.txt", "one.txt")
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "clip 2.mp4", "text": "from the list", "score": 5}\n', encoding="utf-8"
    )
    return folder


def upload(files: Path, bucket: str) -> str:
    fs, _ = storages.filesystem(f"s3://{bucket}")
    fs.mkdir(bucket)
    for file in files.rglob("*"):
        if file.is_file():
            fs.put_file(str(file), f"{bucket}/clips/{file.relative_to(files)}")
    return f"s3://{bucket}/clips"


def scan(path: str | Path, catalog: Path) -> tuple[ScanResult, CatalogRows]:
    result = scan_sources([Source.from_path(path, "d")], catalog, workers=2)
    return result, Catalog.open(catalog).live()


@pytest.mark.slow
def test_a_bucket_is_a_folder(files: Path, cache: Path, tmp_path: Path) -> None:
    url = upload(files, "one")
    for marker in ("clips/", "clips/sub/", "clips/empty/", "clips/sub_$folder$"):
        storages.filesystem(url)[0].call_s3("put_object", Bucket="one", Key=marker, Body=b"")
    _, own = scan(files, tmp_path / "own")
    result, rows = scan(url, tmp_path / "remote")
    wanted, found = ({row["path"]: row for row in r.to_table().to_pylist()} for r in (own, rows))
    assert found.keys() == wanted.keys()
    assert len(found) == 7
    for path, row in found.items():
        differing = {key for key, value in row.items() if value != wanted[path][key]}
        assert differing <= {"root", "mtime_ns", "ordinal"}, path
    assert result.bad_files[0][0] == f"{url}/cut.mp4"
    again, _ = scan(url, tmp_path / "remote")
    assert (again.new, again.changed, again.unchanged) == (0, 0, 7)
    for i in np.flatnonzero(rows.readable).tolist():
        shape = Shape(1 if rows.is_image[i] else 4, 16, 16)
        at = rows.path[i].as_py()
        where = own.file([path.as_py() for path in own.path].index(at))
        requests = (Request(file, bool(rows.is_image[i]), shape) for file in (rows.file(i), where))
        first, second = (load(request) for request in requests)
        assert np.array_equal(first, second)
    assert sum(file.stat().st_size for file in cache.glob("*/*")) <= 60_000


def test_a_list_in_a_bucket_names_files_beside_it(files: Path, cache: Path, tmp_path: Path) -> None:
    url = upload(files, "two")
    _, rows = scan(f"{url}/metadata.jsonl", tmp_path / "catalog")
    assert (rows.path.to_pylist(), rows.caption.to_pylist()) == (["clip 2.mp4"], ["from the list"])
    assert rows.scores["score"].tolist() == [5.0]
    fs, path = storages.filesystem(f"{url}/metadata.jsonl")
    named = ("clip 3.mp4", "shard.tar/one.mp4", "shard.tar/gone.mp4", "gone.mp4")
    fs.pipe_file(path, "".join(f'{{"file_name": "{name}", "caption": "another"}}\n' for name in named).encode())
    _, rows = scan(f"{url}/metadata.jsonl", tmp_path / "catalog")
    assert {row["path"]: row["error"] for row in rows.to_table().to_pylist()} == {
        "clip 3.mp4": None,
        "shard.tar/one.mp4": None,
        "shard.tar/gone.mp4": "no such file",
        "gone.mp4": "no such file",
    }


def test_of_an_archive_little_more_than_headers_is_read_and_once_for_its_version(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, fetch = list[int](), s3fs.core._fetch_range

    def noted(*given: Any, **options: Any) -> bytes:
        data: bytes = fetch(*given, **options)
        read.append(len(data))
        return data

    monkeypatch.setattr(s3fs.core, "_fetch_range", noted)
    fs, _ = storages.filesystem("s3://shards")
    fs.mkdir("shards")
    for names in (("a", "b", "c"), ("c", "a")):
        with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for name in names:
                (tmp_path / "film").write_bytes(bytes(4 << 20))
                archive.add(tmp_path / "film", f"{name}, a film.mp4")
                archive.add(tmp_path, f"folder of {name}", recursive=False)
        expected = [file._replace(mtime_ns=0) for file in list_archive("x.tar", tmp_path / "x.tar")]
        fs.put_file(str(tmp_path / "x.tar"), "shards/x.tar")
        for most in ((tmp_path / "x.tar").stat().st_size // 4, 0):
            read.clear()
            listed = list_address("d", "s3://shards").entries
            assert [file._replace(mtime_ns=0) for file in listed] == expected
            assert sum(read) <= most


def test_small_members_take_few_requests_and_large_ones_few_bytes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both are in one archive, whose content is read as it is."""
    asked, cat = list[int](), MemoryFileSystem.cat_file

    def noted(fs: MemoryFileSystem, path: str, **span: Any) -> bytes:
        data: bytes = cat(fs, path, **span)
        asked.append(len(data))
        return data

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for i, size in enumerate([60_000] * 400 + [8 << 20] * 3 + [60_000] * 40):
            member = tarfile.TarInfo(f"{i:03d}.mp4")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    MemoryFileSystem().pipe_file("/sizes/a.tar", packed.getvalue())
    monkeypatch.setattr(MemoryFileSystem, "cat_file", noted)
    assert len(list_address("d", "memory://sizes").entries) == 443
    assert len(asked) < 20
    assert sum(asked) < len(packed.getvalue()) - (8 << 20)
    content = np.random.default_rng(0).bytes(3 << 20)
    MemoryFileSystem().pipe_file("/sizes/b", content)
    with location.opened(location.Location("memory://sizes/b", "b", 5, len(content) - 9)) as file:
        for at, size in ((0, 3), (300_000, 7), (262_140, 9), (1 << 20, 1 << 20), (len(content) - 12, 99)):
            file.seek(at)
            assert file.read(size) == content[5:-4][at : at + size]


def test_a_web_server_is_asked_for_several_files_at_once(cache: Path, tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=5)

    class Handler(_Quiet):
        def do_HEAD(self) -> None:
            both.wait()
            super().do_HEAD()

    for name in "abcd":
        media.write_picture(tmp_path / f"{name}.png")
    with web_server(tmp_path, Handler) as root:
        files = look_up("d", root, [f"{name}.png" for name in "abcd"], captions=False)
    assert ([file.problem for file in files], both.broken) == ([None] * 4, False)


def test_a_bucket_that_goes_away(files: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips without a copy fail by name; a scan is refused, and its catalog stays as it was."""
    url = upload(files, "three")
    _, rows = scan(url, tmp_path / "catalog")
    fs, _ = storages.filesystem(url)
    fs.rm("three", recursive=True)
    for copy in cache.glob("*/*"):
        copy.unlink()
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,))
    with pytest.raises(MediaError):
        load(Request(rows.file(0), False, Shape(4, 16, 16)))
    with refused("storage-unreadable"):
        scan(url, tmp_path / "catalog")
    assert len(Catalog.open(tmp_path / "catalog").live()) == 7


def test_what_a_storage_s_library_raises_is_the_file_s_problem(
    files: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries have errors of their own, which are no `OSError`."""
    storage = MemoryFileSystem()
    names = {"clip 1.mp4": "", "bad.mp4": "clip 0.mp4", "clip 2.mp4": "", "clip 2.txt": "", "bad.tar": "shard.tar"}
    for name, content in names.items():
        storage.pipe_file(f"/clips/{name}", (files / (content or name)).read_bytes())

    def failing(read: Callable[..., Any]) -> Callable[..., Any]:
        def work(self: object, path: str, *rest: Any, **options: Any) -> Any:
            if "bad" in path or path.endswith(".txt"):
                raise RuntimeError("the endpoint did not answer")
            return read(self, path, *rest, **options)

        return work

    for name in ("cat_file", "get_file", "open"):
        monkeypatch.setattr(MemoryFileSystem, name, failing(getattr(MemoryFileSystem, name)))
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,))
    scan_sources([Source.from_path("memory://clips", "d")], tmp_path / "catalog", workers=1)
    errors = {row["path"]: row["error"] for row in Catalog.open(tmp_path / "catalog").live().to_table().to_pylist()}
    assert errors.pop("clip 1.mp4") is None
    assert errors.keys() == {"bad.mp4", "bad.tar", "clip 2.mp4"}
    assert all("RuntimeError: the endpoint did not answer" in error for error in errors.values()), errors


def test_the_members_of_an_archive_stay_while_it_cannot_be_listed(
    files: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("clip 0.mp4", "shard.tar"):
        MemoryFileSystem().pipe_file(f"/kept/{name}", (files / name).read_bytes())
    _, before = scan("memory://kept", tmp_path / "catalog")

    def fails(_: object, path: str, **__: Any) -> bytes:
        raise TimeoutError(path)

    # Written again, so that the headers that are kept are those of another version.
    MemoryFileSystem().pipe_file("/kept/shard.tar", (files / "shard.tar").read_bytes())
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fails)
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,))
    result, rows = scan("memory://kept", tmp_path / "catalog")
    assert (result.found, result.unchanged, result.removed, result.bad) == (2, 2, 0, 0)
    assert rows.to_table() == before.to_table()
    (note,) = (note for note in result.notes if note.startswith("1 file with content that the storage did not give"))
    assert "shard.tar: cannot be read now: TimeoutError" in note


def test_a_cache_that_cannot_be_written_costs_no_rows(
    files: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive is listed without it; what is to be copied ends the scan with the name of its variable."""
    for name in ("clip 0.mp4", "shard.tar"):
        MemoryFileSystem().pipe_file(f"/uncached/{name}", (files / name).read_bytes())
    _, before = scan("memory://uncached", tmp_path / "catalog")
    (tmp_path / "a file").touch()
    monkeypatch.setenv("REELWORKS_CACHE", str(tmp_path / "a file" / "cache"))
    result, rows = scan("memory://uncached", tmp_path / "catalog")
    assert (result.unchanged, result.removed, result.bad) == (2, 0, 0)
    MemoryFileSystem().pipe_file("/uncached/new.mp4", (files / "clip 0.mp4").read_bytes())
    with refused("file-unwritable", "REELWORKS_CACHE"):
        scan("memory://uncached", tmp_path / "catalog")
    assert Catalog.open(tmp_path / "catalog").live().to_table() == rows.to_table() == before.to_table()


@pytest.mark.parametrize("content", [b"", b'[[["one.m', b"\0" * 40, b'[[["one.mp4"]], ""]'])
def test_headers_that_are_damaged_in_the_cache_are_read_anew(content: bytes, files: Path, cache: Path) -> None:
    MemoryFileSystem().pipe_file("/damaged/shard.tar", (files / "shard.tar").read_bytes())
    listed = list_address("d", "memory://damaged").entries
    for i in range(2):
        (kept,) = cache.glob("*/*.json")
        kept.write_bytes(content if i == 0 else kept.read_bytes())
        assert list_address("d", "memory://damaged").entries == listed
        list_address("d", "memory://damaged")  # which keeps them again


class _Client:
    """A folder of this machine as clients of SFTP and FTP list it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def listdir_iter(self, path: str) -> Iterator[SimpleNamespace]:
        for entry in os.scandir(f"{self._root}{path}"):
            of = entry.stat()
            times = {"st_mtime": of.st_mtime, "st_atime": of.st_atime, "st_uid": 0, "st_gid": 0}
            yield SimpleNamespace(filename=entry.name, st_mode=of.st_mode, st_size=of.st_size, **times)

    def mlsd(self, path: str) -> Iterator[tuple[str, dict[str, str]]]:
        for entry in os.scandir(f"{self._root}{path}"):
            yield entry.name, {"type": "dir" if entry.is_dir() else "file", "size": str(entry.stat().st_size)}

    def dir(self, *_: object) -> None:
        raise ftplib.error_perm("502 not implemented")

    def close(self) -> None: ...


_OF_STORAGES = (OSError(errno.ESTALE, "stale"), PermissionError(errno.EACCES, "closed"), TimeoutError(), EOFError())
_OF_FTP = (*_OF_STORAGES, ftplib.error_temp("421 busy"), ftplib.error_perm("550 no such folder"))
_ERRORS = {"ftp": _OF_FTP, "http": (*_OF_STORAGES, aiohttp.ServerDisconnectedError(), FileNotFoundError())}


@pytest.mark.parametrize("kind", ["file", "dir", "sftp", "ftp", "http"])
def test_no_listing_is_taken_that_left_a_folder_out(
    kind: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the second question of three is answered by; what passes is asked again."""
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,))
    for name in ("a", "b", ".hidden"):
        media.write_picture(tmp_path / "all" / name / "0.png")
    monkeypatch.setitem(sys.modules, "paramiko", MagicMock())
    for module, name in (("sftp", "SFTPFileSystem"), ("ftp", "FTPFileSystem")):
        client = getattr(importlib.import_module(f"fsspec.implementations.{module}"), name)
        monkeypatch.setattr(client, "_connect", lambda self: setattr(self, "ftp", _Client(tmp_path)))
    fault: Exception | None = None
    asked, times = 0, 0

    def counting(ask: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any, **options: Any) -> Any:
            nonlocal asked, times
            if not isinstance(args[0], str) or str(tmp_path) in args[0]:
                asked += 1
                if fault is not None and asked > 1 and times > 0:
                    times -= 1
                    raise fault
            return ask(*args, **options)

        return work

    with web_server(tmp_path) as web:
        own = f"file://{tmp_path}"
        url = {"file": f"{own}/all", "dir": f"dir://all::{own}", "http": f"{web}/all"}.get(kind, f"{kind}://host/all")
        owner, name = (HTTPFileSystem, "_ls_real") if kind == "http" else (os, "scandir")
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
        for fault in (None, *_ERRORS.get(kind, _OF_STORAGES)):
            for times in (1, 1 << 30):
                asked = 0
                failed = suppress(UserError) if times == 1 else refused("storage-unreadable")
                with failed if fault else nullcontext():
                    files = list_address("d", url).entries
                    assert [file.path for file in files] == ["a/0.png", "b/0.png"]
                assert asked == 3 or fault is not None
        if kind != "http":
            fault, asked = PermissionError(errno.EACCES, "closed"), -2  # of a folder that holds none of a list's files
            named = ["b/0.png", ".hidden/0.png", "0.png"]
            found = look_up("d", url, named, captions=True)
            assert [file.problem for file in found] == [None, None, "no such file"]


def test_what_a_client_has_kept_of_a_listing_is_not_taken_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of GitHub keeps it."""
    kept, ls = dict[str, Any](), LocalFileSystem.ls
    monkeypatch.setattr(LocalFileSystem, "ls", lambda fs, at, **how: kept.setdefault(at, ls(fs, at, **how)))
    monkeypatch.setattr(LocalFileSystem, "invalidate_cache", lambda fs, path=None: kept.clear())
    for number in (1, 2):
        media.write_picture(tmp_path / f"{number}.png")
        assert len(list_address("d", f"file://{tmp_path}").entries) == number


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Sends the time of a file's last change, in whole seconds, and no hash."""

    def log_message(self, *_: object) -> None: ...


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64  # whom it turns away asks again after a second


@contextmanager
def web_server(folder: Path, handler: type[_Quiet] = _Quiet) -> Iterator[str]:
    with _Server(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_web_server_gives_the_files_of_a_list(files: Path, cache: Path, tmp_path: Path) -> None:
    with web_server(files) as root:
        (tmp_path / "list.csv").write_text(
            f"video,caption\n{root}/clip%202.mp4,a\nsub/e.png,b\nnone.mp4,c\n", encoding="utf-8"
        )
        source = Source.from_path(tmp_path / "list.csv", root=root)
        scan_sources([source], tmp_path / "catalog", workers=1)
        rows = Catalog.open(tmp_path / "catalog").live()
        errors = {row["path"]: (row["num_frames"], row["error"]) for row in rows.to_table().to_pylist()}
    assert errors == {"clip 2.mp4": (6, None), "sub/e.png": (1, None), "none.mp4": (0, "no such file")}


_any = itertools.count()
_CHANGED = "the file has changed since it was scanned; scan again"


class _Faulty(_Quiet):
    """Serves ranges and hashes, and does what `fault` says."""

    # A status, for the files that `only` names; "cut"; of a range, what is "whole" or "shifted"; "no hash", or "any hash";
    # "packed" for who accepts it; "no size" but with a range; a "page" in place of the file.
    fault = ""
    only = ""
    has_time = False
    kind = ""  # Content-Type of that page
    after = ""  # Retry-After of a status
    times = 1 << 30  # that the fault is still to happen

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        cls = type(self)
        file = Path(self.directory) / urllib.parse.unquote(self.path.partition("?")[0].lstrip("/"))
        status, data = (200, file.read_bytes()) if file.is_file() else (404, b"")
        fault = cls.fault if cls.only in self.path and cls.times > 0 else ""
        cls.times -= bool(fault)
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if fault.isdigit():
            status, data = int(fault), b""
        told = "" if fault == "no hash" else str(next(_any) if fault == "any hash" else zlib.crc32(data))
        if fault == "page":
            data, span = b"<!DOCTYPE html><title>Sign in</title>", None
        is_packed = fault == "packed" and "gzip" in self.headers.get("Accept-Encoding", "")
        if is_packed:
            data = gzip.compress(data)
        if span and fault != "whole" and status == 200 and not is_packed:
            first, last = (int(end or len(data)) + 512 * (fault == "shifted") for end in span.groups())
            where = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
            status, data = 206, data[first : last + 1]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", where)
        if told:
            self.send_header("ETag", told)
        if fault.isdigit() and cls.after:
            self.send_header("Retry-After", cls.after)
        if fault == "page" and cls.kind:
            self.send_header("Content-Type", cls.kind)
        if cls.has_time and file.is_file():
            self.send_header("Last-Modified", self.date_time_string(file.stat().st_mtime))
        if is_packed:
            self.send_header("Content-Encoding", "gzip")
        if not ((has_body and fault == "cut") or (fault == "no size" and status == 200)):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if has_body:
            self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> type[_Faulty]:
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,) * 3)
    monkeypatch.setattr(retry, "BUSY_SECONDS_OF_SCANS", 0.05)
    monkeypatch.setattr(retry, "_BUSY_SECONDS", ContextVar("short", default=0.05))
    monkeypatch.setattr(retry, "_UNTOLD_SECONDS", (0.01, 0.02))
    return type("Faulty", (_Faulty,), {})


def _scan_list(root: str, names: Sequence[str], folder: Path) -> dict[str, tuple[int, str | None]]:
    """Return number of frames and error of each file of a list, which lies in the folder with the catalog."""
    (folder / "some.csv").write_text("path,text\n" + "".join(f"{name},a\n" for name in names), encoding="utf-8")
    scan_sources([Source.from_path(folder / "some.csv", root=root)], folder / "some", workers=1)
    rows = Catalog.open(folder / "some").live().to_table().to_pylist()
    return {row["path"]: (row["num_frames"], row["error"]) for row in rows}


def test_a_packed_list_is_read_from_a_server_that_says_so(cache: Path, tmp_path: Path) -> None:
    class Handler(_Quiet):
        def end_headers(self) -> None:
            if self.path.endswith(".gz"):
                self.send_header("Content-Encoding", "gzip")
            super().end_headers()

    media.write_picture(tmp_path / "a.png")
    (tmp_path / "list.csv.gz").write_bytes(gzip.compress(b"path,text\na.png,words"))
    with web_server(tmp_path, Handler) as root:
        assert scan(f"{root}/list.csv.gz", tmp_path / "catalog")[1].caption.to_pylist() == ["words"]


class _Closed(_Quiet):
    """Lets in whom `key` lets in: a query, or a name and password."""

    key = ""

    def send_head(self) -> Any:
        if self.key not in (self.path.partition("?")[2], self.headers.get("Authorization")):
            self.send_error(403)
            return None
        return super().send_head()


def test_the_signature_of_an_address_is_part_of_no_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list may have one, but neither a folder nor a file of a list."""
    monkeypatch.setattr(_Closed, "key", "sig=s%2B/c.mp4")
    media.write_picture(tmp_path / "files" / "a.png")
    (tmp_path / "l.csv").write_text("path,text\na.png,words\nb.png?sig=s,gone", encoding="utf-8")
    with web_server(tmp_path, _Closed) as closed, web_server(tmp_path / "files") as root:
        url = f"{closed}/l.csv?{_Closed.key}"
        source = DatasetConfig(path=url, root=root).place
        result = scan_sources([source], tmp_path / "catalog", workers=1)
        rows = Catalog.open(tmp_path / "catalog").live().to_table().to_pylist()
        found = {row["path"]: (row["dataset"], row["caption"], row["error"]) for row in rows}
        assert found.pop("a.png") == ("l", "words", None)
        assert [error for *_, error in found.values()] == ["a query behind the name, as of a signed address: .png"]
        kept = b"".join(file.read_bytes() for file in (tmp_path / "catalog").rglob("*") if file.is_file())
        assert _Closed.key.encode() not in kept
        assert _Closed.key not in "".join(result.notes)
        with refused("query-of-folder", "dataset.path"):
            Source.from_path(f"{root}/?{_Closed.key}")
        with refused("query-of-folder", "dataset.root"):
            Source.from_path(url, root=f"{root}?{_Closed.key}")


def test_a_password_is_given_as_the_refusal_of_an_address_with_one_says(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = base64.b64encode(b"me:p@ss").decode()
    monkeypatch.setattr(_Closed, "key", f"Basic {given}")
    media.write_picture(tmp_path / "files" / "a.png")
    (tmp_path / "files" / "l.csv").write_text("path,text\na.png,words", encoding="utf-8")
    own = tmp_path / "own.csv"
    with web_server(tmp_path / "files", _Closed) as root:
        secret = root.replace("://", "://me:p%40ss@")
        for make in (
            lambda: Source.from_path(f"{secret}/l.csv"),
            lambda: Source.from_path(f"dir://clips::{secret}"),
            lambda: DatasetConfig(path=str(own), root=secret).place,
            lambda: DatasetConfig(path=f"{secret}/l.csv", root=root).place,
            lambda: companions.sources(Source.from_path(own), {"control": f"{secret}/files"}),
        ):
            with refused("password-in-address") as caught:
                make()
            assert "p%40ss" not in str(caught.value)
        own.write_text(f"path\n{secret}/a.png", encoding="utf-8")
        with refused("list-row-invalid", says="row 1 has an address with a password") as of_row:
            scan(own, tmp_path / "catalog")
        assert "p%40ss" not in str(of_row.value)
        ((name, options),) = re.findall(r"set (\w+) to '(.+)'", caught.value.remedy)
        for protocol in ("http", "https"):
            monkeypatch.setitem(fsspec.config.conf, protocol, {})
        monkeypatch.setenv(name, options.replace("…", given))
        assert scan(f"{root}/l.csv", tmp_path / "catalog")[1].caption.to_pylist() == ["words"]
    for url in (
        "s3://bucket/a:b@c/d",
        "github://owner:name@main/clips",
        "abfs://container@account.dfs.core.windows.net/a",
        "sftp://me@host:22/a@b",
    ):
        assert Source.from_path(url).url == url
    with refused("password-in-address") as caught:
        Source.from_path("sftp://me:secret@host/clips")
    assert 'FSSPEC_SFTP to \'{"password": "…"}\'' in caught.value.remedy


_BESIDE = [
    "a.txt",
    "b.caption",
    "c.json",
    "c.png.txt",
    "d.txt",
    "d.1.txt",
    "d.2.txt",
    "e.txt",
    "e.1.txt",
    "f.1.txt",
    "sub/a.png.caption",
]


@pytest.mark.parametrize("lacking", [404, 410, 403, 200])
@pytest.mark.quick_cases(2)
def test_captions_beside_the_files_of_a_web_server_are_those_beside_the_same_files_here(
    lacking: int, faulty: type[_Faulty], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way a server says that it lacks a file: also by a page. None are asked for where the list has them."""
    web, asked, fault = tmp_path / "web", list[str](), 0
    names = [*(f"{name}.png" for name in "abcdefg"), "e.1.png", "sub/a.png"]
    for name in names:
        media.write_picture(web / name)
    for name in _BESIDE:
        (web / name).write_text(f"text of {name}", encoding="utf-8")
    rows = "".join(f"{name},{i}\n" for i, name in enumerate(names))
    (web / "list.csv").write_text(f"path,aes\n{rows}", encoding="utf-8")
    (web / "own.csv").write_text(f"path,text\n{rows}", encoding="utf-8")

    class Handler(faulty):
        def _answer(self, *, has_body: bool) -> None:
            is_there = Path(f"{self.directory}{self.path}").is_file()
            asked.extend(re.findall(r"\w+\.(?:txt|caption)$", self.path))
            if is_there and not (fault and self.path.endswith(".txt")):
                super()._answer(has_body=has_body)
                return
            page = b"<html>nothing</html>"
            self.send_response(fault if is_there else lacking)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page if has_body else b"")

    def captions(rows: CatalogRows) -> dict[str, str | None]:
        return dict(zip(rows.path.to_pylist(), rows.caption.to_pylist(), strict=True))

    wanted = captions(scan(web / "list.csv", tmp_path / "here")[1])
    assert (wanted["d.png"], wanted["g.png"]) == ("text of d.txt\ntext of d.1.txt\ntext of d.2.txt", None)
    with web_server(web, Handler) as root:
        assert captions(scan(f"{root}/list.csv", tmp_path / "there")[1]) == wanted
        assert len(asked) <= 12 * len(names)
        fault = 503
        result, rows = scan(f"{root}/list.csv", tmp_path / "there")
        assert (captions(rows), result.bad, result.unchanged) == (wanted, 0, len(names))
        asked.clear()
        assert captions(scan(f"{root}/own.csv", tmp_path / "own")[1])["d.png"] == "3"
        assert not asked


@pytest.mark.parametrize("fault", ["cut", "whole"])
def test_bytes_that_are_not_all_or_not_those_of_the_range_are_no_clip(
    fault: str, faulty: type[_Faulty], files: Path, cache: Path, tmp_path: Path
) -> None:
    """They are not kept as one either; MPEG-TS is played as far as it goes, and so is what stands behind it."""
    for i in range(2):
        media.write_video(tmp_path / f"{i}.ts", num_frames=8 + i, codec="mpeg2video")
    with tarfile.open(files / "ts.tar", "w") as archive:
        for i in range(2):
            archive.add(tmp_path / f"{i}.ts", f"{i}.ts")
    (tmp_path / "1.ts").rename(files / "1.ts")
    names = ["1.ts"] if fault == "cut" else ["ts.tar/0.ts", "ts.tar/1.ts"]
    reason = "instead of" if fault == "cut" else "the server sends files as a whole"
    with web_server(files, faulty) as root:
        faulty.fault, faulty.only = fault, "ts"
        found = _scan_list(root, names, tmp_path)
        assert all(frames == 0 and reason in str(error) for frames, error in found.values()), found
        assert not list(cache.glob("*/*.ts"))
        if fault == "cut":
            faulty.times = 3  # of which one is the question for the size
        else:
            faulty.fault = ""
        assert _scan_list(root, names, tmp_path) == {name: (8 + int(name[-4]), None) for name in names}


def _write_tar(folder: Path) -> None:
    """Write a tar of two pictures, "0.bmp" and "1.bmp", whose greys are 0 and 1."""
    with tarfile.open(folder / "a.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for grey in range(2):
            Image.new("RGB", (16, 16), (grey,) * 3).save(folder / "one.bmp")
            archive.add(folder / "one.bmp", f"{grey}.bmp")


@pytest.mark.parametrize("fault", ["packed", "no size"])
def test_archives_are_read_from_a_server_that_packs_files_or_sends_them_in_chunks(
    fault: str, faulty: type[_Faulty], cache: Path, tmp_path: Path
) -> None:
    """Where it sends ranges to who asks for the file as it is."""
    _write_tar(tmp_path)
    with web_server(tmp_path, faulty) as root:
        faulty.fault = fault
        _scan_list(root, ["a.tar/0.bmp", "a.tar/1.bmp"], tmp_path)
        assert _trained(Catalog.open(tmp_path / "some").live()) == {"a.tar/0.bmp": 0, "a.tar/1.bmp": 1}


def test_a_server_that_tells_no_size_and_has_no_ranges_gives_no_archive(cache: Path, tmp_path: Path) -> None:
    class Handler(_Quiet):
        def send_header(self, name: str, value: str) -> None:
            if name != "Content-Length":
                super().send_header(name, value)

    _write_tar(tmp_path)
    with web_server(tmp_path, Handler) as root:
        (file,) = look_up("d", root, ["a.tar/0.bmp"], captions=False)
    assert "the server sends files as a whole, and no ranges of them" in str(file.problem)


def test_a_range_that_begins_elsewhere_than_was_asked_for_is_no_clip(
    faulty: type[_Faulty], cache: Path, tmp_path: Path
) -> None:
    """Though it is of the same length, and a picture of the same size."""
    _write_tar(tmp_path)
    with web_server(tmp_path, faulty) as root:
        _scan_list(root, ["a.tar/0.bmp", "a.tar/1.bmp"], tmp_path)
        rows = Catalog.open(tmp_path / "some").live()
        _empty(cache)
        faulty.fault = "shifted"
        assert all("the server sent 'bytes" in str(found) for found in _trained(rows).values())
        faulty.times = 1  # then the server is well again
        assert _trained(rows) == {"a.tar/0.bmp": 0, "a.tar/1.bmp": 1}


def _write_greys(folder: Path, *greys: int) -> dict[str, tuple[str | None, int]]:
    """Write pictures of one size, whatever their grey, and a list of both; return what `_greys` shall find."""
    folder.mkdir(exist_ok=True)
    for i, grey in enumerate(greys):
        Image.new("RGB", (16, 16), (grey,) * 3).save(folder / f"{i}.bmp")
    (folder / "list.csv").write_text("path,text\n" + "".join(f"{i}.bmp,{grey}\n" for i, grey in enumerate(greys)))
    return {f"{i}.bmp": (str(grey), grey) for i, grey in enumerate(greys)}


def _empty(cache: Path) -> None:
    for copy in cache.glob("*/*"):
        copy.unlink()


def test_where_neither_hash_nor_time_is_told_nothing_is_taken_for_unchanged(
    faulty: type[_Faulty], cache: Path, tmp_path: Path
) -> None:
    """What was scanned is what is trained, as its content tells, for which it is not asked for once more."""
    faulty.fault = "no hash"
    with web_server(tmp_path / "web", faulty) as root:
        for greys in ((1, 2), (2, 1), (2, 1)):
            wanted = _write_greys(tmp_path / "web", *greys)
            assert _greys(f"{root}/list.csv", tmp_path / "catalog") == wanted
        result, rows = scan(f"{root}/list.csv", tmp_path / "catalog")
        asked = faulty.times
        assert (result.unchanged, result.changed) == (2, 0)
        assert _trained(rows) == {"0.bmp": 2, "1.bmp": 1}
        assert faulty.times == asked
        _empty(cache)
        faulty.fault, faulty.times = "cut", 1  # a download that breaks off is no change
        assert _trained(rows) == {"0.bmp": 2, "1.bmp": 1}
        _empty(cache)
        faulty.fault, faulty.times = "no hash", asked
        _write_greys(tmp_path / "web", 2, 3)
        assert _trained(rows) == {"0.bmp": 2, "1.bmp": _CHANGED}


def test_what_a_trusted_list_states_is_not_taken_for_the_content(
    faulty: type[_Faulty], cache: Path, tmp_path: Path
) -> None:
    faulty.fault = "no hash"
    _write_greys(tmp_path / "web", 1)
    (tmp_path / "web" / "list.csv").write_text("path,text,num_frames,height,width,fps\n0.bmp,a,1,16,16,\n")
    with web_server(tmp_path / "web", faulty) as root:
        source = DatasetConfig(path=f"{root}/list.csv", trust_list=True).place
        scan_sources([source], tmp_path / "catalog", workers=1)
        assert _trained(Catalog.open(tmp_path / "catalog").live()) == {"0.bmp": 1}


@pytest.mark.parametrize("has_time", [True, False])
def test_a_hash_that_is_another_at_each_answer_is_no_change(
    has_time: bool, faulty: type[_Faulty], cache: Path, tmp_path: Path
) -> None:
    """As those that several servers of one name make; where no time is told, known clips keep their rows."""
    faulty.has_time, faulty.only = has_time, "bmp"
    wanted = _write_greys(tmp_path / "web", 1, 2)
    with web_server(tmp_path / "web", faulty) as root:
        assert _greys(f"{root}/list.csv", tmp_path / "catalog") == wanted
        faulty.fault = "any hash"
        _empty(cache)
        result, rows = scan(f"{root}/list.csv", tmp_path / "catalog")
        assert (result.unchanged, result.bad) == (2, 0)
        assert _trained(rows) == {"0.bmp": 1, "1.bmp": 2}
        if has_time:
            assert _greys(f"{root}/list.csv", tmp_path / "anew") == wanted


def test_a_storage_that_does_not_answer_has_not_lost_its_files(
    faulty: type[_Faulty], files: Path, cache: Path, tmp_path: Path
) -> None:
    """Only a 404 or 410 says that; whatever else is asked again, and if it stays so, the rows do too."""
    names = [f"clip {i}.mp4" for i in range(4)]
    good = {f"clip {i}.mp4": (4 + i, None) for i in range(4)}
    with web_server(files, faulty) as root:
        faulty.fault, faulty.times = "503", 3
        assert _scan_list(root, names, tmp_path) == good
        rows = Catalog.open(tmp_path / "some").live()
        clip = rows.file(rows.path.to_pylist().index("clip 2.mp4"))
        for copy in cache.glob("*/*"):
            copy.unlink()
        faulty.only = "clip%202"
        for fault in ("503", "429", "403"):
            faulty.fault, faulty.times = fault, 1 << 30
            assert _scan_list(root, names, tmp_path) == good
            with pytest.raises(OSError, match=fault) as caught, location.local(clip):
                pass
            assert not isinstance(caught.value, FileNotFoundError)
        for fault in ("404", "410"):
            faulty.fault = fault
            assert _scan_list(root, names, tmp_path) == good | {"clip 2.mp4": (0, "no such file")}
        faulty.only, faulty.fault = "", "503"
        with refused("storage-unreadable", says="503"):
            _scan_list(root, [*names, "more.mp4"], tmp_path)


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream", ""])
@pytest.mark.quick_cases(1)
def test_a_page_to_sign_in_is_not_taken_for_the_file(
    kind: str, faulty: type[_Faulty], cache: Path, tmp_path: Path
) -> None:
    """Whoever has no rights any more is led to it, with an answer that is none of an error; other kinds are the file's."""
    web, refused = tmp_path / "web", {"/0.bmp": {"0.bmp"}, "a.tar": {"a.tar/0.bmp", "a.tar/1.bmp"}}
    names = ["0.bmp", "1.bmp", "a.tar/0.bmp", "a.tar/1.bmp"]
    _write_greys(web, 0, 1)
    _write_tar(web)
    with web_server(web, faulty) as root:
        good = _scan_list(root, names, tmp_path)
        rows = Catalog.open(tmp_path / "some").live()
        faulty.kind = kind
        for faulty.only, out in refused.items():
            _empty(cache)
            faulty.fault = "page"
            found = _trained(rows)
            assert {name for name in names if isinstance(found[name], str)} == out
            assert all(("refuses it: it sends a page" in found[name]) == ("html" in kind) for name in out), found
            now = _scan_list(root, names, tmp_path)
            assert {name for name in names if now[name] != good[name]} == (set() if "html" in kind else out)
            faulty.fault = ""
            assert _scan_list(root, names, tmp_path) == good


class _Limited(_Faulty):
    """Gives so many answers in each window, and says of the others when to ask again."""

    fault, after = "429", "1"
    most, window = 6, 0.05
    _given = (0, 0)
    asked, refused = 0, 0
    _counting = threading.Lock()

    def _answer(self, *, has_body: bool) -> None:
        cls = type(self)
        with cls._counting:
            now, (window, given) = int(time.monotonic() / cls.window), cls._given
            given = given + 1 if window == now else 1
            cls._given, cls.asked, cls.refused = (now, given), cls.asked + 1, cls.refused + (given > cls.most)
            cls.only = "" if given > cls.most else "none"
        super()._answer(has_body=has_body)


def test_a_storage_that_limits_the_rate_of_requests_is_asked_as_it_says(
    faulty: type[_Faulty],
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each file is known in the end, at every start; the line about it is said once, not for each refusal."""
    monkeypatch.setattr(retry, "BUSY_SECONDS_OF_SCANS", 60.0)
    monkeypatch.setattr(retry, "asked_seconds", lambda headers: _Limited.window if "retry-after" in headers else None)
    limited = type("Limited", (_Limited,), {})
    names = [f"{i:02d}.bmp" for i in range(16)]
    for name in names:
        Image.new("RGB", (16, 16)).save(tmp_path / name)
    with web_server(tmp_path, limited) as root, caplog.at_level("INFO"):
        for _ in range(2):
            assert _scan_list(root, names, tmp_path) == dict.fromkeys(names, (1, None))
    assert 0 < limited.refused < limited.asked / 2
    assert sum("limits the rate of requests (429)" in line for line in caplog.messages) == 1


def test_a_scan_is_refused_where_a_storage_wants_more_time_than_is_waited(
    faulty: type[_Faulty], cache: Path, tmp_path: Path
) -> None:
    """With the time; meanwhile it is not asked."""
    web = tmp_path / "web"
    _write_greys(web, *range(18))
    names = [f"{i}.bmp" for i in range(18)]
    with web_server(web, faulty) as root:
        good = _scan_list(root, names, tmp_path)
        faulty.fault, faulty.after, before = "503", "3600", faulty.times
        for _ in range(2):
            with refused(
                "storage-unreadable", says=r"limits the rate of requests \(503\); it may be asked again in 3[56]\d\d s"
            ):
                _scan_list(root, names, tmp_path)
        assert before - faulty.times <= 2 * 16  # asked at once, each by HEAD and GET
        storages._pace.cache_clear()
        faulty.fault = ""
        assert _scan_list(root, names, tmp_path) == good


def test_a_storage_is_away_only_if_it_answers_nothing_any_more(
    faulty: type[_Faulty], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that it does not give come to an end together, after all others, since they are asked for again."""
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0, 0.0, 0.2))
    names = [f"{i:02d}{'-bad' * (i % 4 == 0)}.png" for i in range(32)]
    (tmp_path / "web").mkdir()
    for name in names:
        media.write_picture(tmp_path / "web" / name)
    with web_server(tmp_path / "web", faulty) as root:
        faulty.fault, faulty.only = "500", "bad"
        found = _scan_list(root, names, tmp_path)
    assert all(("500" in str(error)) == ("bad" in name) for name, (_, error) in found.items())


def test_files_of_a_storage_that_is_away_are_asked_for_once_each(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows stay."""
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,) * 3)
    media.write_picture(tmp_path / "a.png")
    data, asked = (tmp_path / "a.png").read_bytes(), list[str]()

    def away(_: object, path: str, *__: Any, **___: Any) -> None:
        asked.append(path)
        raise TimeoutError

    for attempt in range(2):
        for i in range(40):
            MemoryFileSystem().pipe_file(f"/far/{i}.png", data)
        result, _ = scan("memory://far", tmp_path / "catalog")
        assert (result.found, result.removed, result.bad) == (40, 0, 0)
        assert len(asked) <= 60 * attempt
        monkeypatch.setattr(MemoryFileSystem, "get_file", away)
    assert result.unchanged == 40


def test_names_are_taken_literally(faulty: type[_Faulty], files: Path, cache: Path, tmp_path: Path) -> None:
    """Also where they have signs that mean something in addresses, and files of the names that are then meant."""
    names = ["a#1.mp4", "a#2.mp4", "a%20b.mp4", "a b.mp4", "q?v=1.mp4", "50%.mp4", "a+b.mp4", "a::b.mp4"]
    folder = tmp_path / "named"
    folder.mkdir()
    for i, name in enumerate(names):
        (folder / name).write_bytes((files / "clip 1.mp4").read_bytes() + bytes(i))
    (folder / "a").write_bytes((files / "clip 1.mp4").read_bytes())
    with web_server(folder, faulty) as root:
        _scan_list(root, names, tmp_path)
        sizes = {
            row["path"]: row["size_bytes"] for row in Catalog.open(tmp_path / "some").live().to_table().to_pylist()
        }
        assert sizes == {name: (folder / name).stat().st_size for name in names}
        rows = Catalog.open(tmp_path / "some").live()
        for i, name in enumerate(rows.path.to_pylist()):
            with location.local(rows.file(i)) as copy:
                assert Path(str(copy)).read_bytes() == (folder / name).read_bytes()
    (folder / "a::b.txt").write_text("of two parts", encoding="utf-8")
    _, rows = scan(upload(folder, "literal"), tmp_path / "bucket")
    captions = {row["path"]: (row["error"], row["caption"]) for row in rows.to_table().to_pylist()}
    assert captions.pop("a::b.mp4") == (None, "of two parts")
    assert all(found == (None, None) for name, found in captions.items() if name.endswith(".mp4")), captions


def test_clips_in_a_zip_in_a_storage_are_those_of_a_folder(cache: Path, tmp_path: Path) -> None:
    """Its address is a chain of two; the names in it are literal here, too."""
    names = ["a.png", "sub/50%25.png", "x::file:/y.png", "zip::b.png"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for grey, name in enumerate(names):
            Image.new("RGB", (16, 16), (grey,) * 3).save(tmp_path / "one.png")
            packed.write(tmp_path / "one.png", f"clips/{name}")
            packed.writestr(f"clips/{name[:-4]}.txt", name)
    MemoryFileSystem().pipe_file("/zipped/a.zip", (tmp_path / "a.zip").read_bytes())
    found = _greys("zip://clips::memory://zipped/a.zip", tmp_path / "catalog")
    assert found == {name: (name, grey) for grey, name in enumerate(names)}
    with refused("storage-unreadable"):
        list_address("d", "zip://clips::memory://zipped/none.zip")


def _zipped(path: Path, greys: dict[str, int]) -> str:
    """Pack pictures of one size with their greys as captions; return the address of a folder in the zip."""
    with zipfile.ZipFile(path, "w") as packed:
        for name, grey in greys.items():
            Image.new("RGB", (16, 16), (grey,) * 3).save(made := io.BytesIO(), "bmp")
            packed.writestr(name, made.getvalue())
            if name != "of.bmp":  # whose caption is a link
                packed.writestr(f"{name[:-4]}.txt", str(grey))
    return f"zip://{{}}::{path}"


def test_a_zip_that_is_packed_anew_is_read_anew(cache: Path, tmp_path: Path) -> None:
    """Its members have checksums; also one that was replaced after the scan is not taken for the one scanned."""
    for order in ((1, 2), (2, 1)):
        url = _zipped(tmp_path / "a.zip", {f"clips/{i}.bmp": grey for i, grey in enumerate(order)}).format("clips")
        assert _greys(url, tmp_path / "catalog") == {f"{i}.bmp": (str(g), g) for i, g in enumerate(order)}
    _, rows = scan(url, tmp_path / "catalog")
    _empty(cache)
    _zipped(tmp_path / "a.zip", {"clips/0.bmp": 1, "clips/1.bmp": 1})
    assert _trained(rows) == {"0.bmp": _CHANGED, "1.bmp": 1}


@pytest.mark.parametrize(("kind", "reader"), [("zip", zipfile.ZipFile), ("tar", tarfile.TarFile)])
def test_the_list_of_an_archives_members_is_read_as_often_for_many_as_for_few(
    kind: str, reader: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read for each member, it takes a time that grows with the square of their number."""
    read, reads = list[str](), reader.__init__

    def counted(*args: Any, **options: Any) -> None:
        read.append(kind)
        reads(*args, **options)

    monkeypatch.setattr(reader, "__init__", counted)
    for members in (2, 20):
        folder = tmp_path / str(members)
        url = _packed(kind, folder, {f"{grey}.bmp": grey for grey in range(members)})
        read.clear()
        assert _greys(url, folder / "catalog") == {f"{grey}.bmp": (str(grey), grey) for grey in range(members)}
        assert 1 <= len(read) <= 4, "once, or once for each thread"


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_of_an_archive_are_read_by_many_threads_at_once(kind: str, cache: Path, tmp_path: Path) -> None:
    greys = {f"{grey}.bmp": grey for grey in range(40)}
    url = _packed(kind, tmp_path, greys)
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda name: storages.read_range(storages.address(url, name), 0, 2000), [*greys] * 4)
        assert [content[-1] for content in found] == [*greys.values()] * 4


def _packed(kind: str, folder: Path, greys: dict[str, int]) -> str:
    """Pack pictures as `_zipped` does into an archive of this kind in a new folder; return its address."""
    folder.mkdir(exist_ok=True)
    url = _zipped(folder / "a.zip", greys).format("")
    if kind == "tar":
        with zipfile.ZipFile(folder / "a.zip") as packed, tarfile.open(folder / "a.tar", "w") as archive:
            for info in packed.infolist():
                member = tarfile.TarInfo(info.filename)
                member.size = info.file_size
                archive.addfile(member, io.BytesIO(packed.read(info)))
    return url.replace("zip", kind)


@pytest.mark.parametrize("top", ["zip://::{}", "zip:///::{}", "memory://", "memory:///"])
def test_files_at_the_top_of_a_storage_are_read(
    top: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    _zipped(tmp_path / "a.zip", {"0.bmp": 7, "sub/1.bmp": 8})
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        for name in packed.namelist():
            MemoryFileSystem().pipe_file(f"/{name}", packed.read(name))
    found = _greys(top.format(tmp_path / "a.zip"), tmp_path / "catalog")
    assert found == {"0.bmp": ("7", 7), "sub/1.bmp": ("8", 8)}


def test_members_of_a_zip_that_cannot_be_read_are_told_as_such(cache: Path, tmp_path: Path) -> None:
    """They are not the storage's fault, for which they would be asked for again; links are told as those of other archives."""
    url = _zipped(tmp_path / "a.zip", {"good.bmp": 1, "damaged.bmp": 2, "encrypted.bmp": 3, "of.bmp": 4})
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as packed:
        for name in ("of.txt", "link.bmp"):
            link = zipfile.ZipInfo(name)
            link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            packed.writestr(link, "good.txt")
        where = packed.getinfo("damaged.bmp").header_offset
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[where + 200] ^= 1
    content[content.rindex(b"encrypted.bmp") - 46 + 8] |= 1  # a flag in the directory at the end
    (tmp_path / "a.zip").write_bytes(content)
    _, rows = scan(url.format(""), tmp_path / "catalog")
    assert {row["path"]: row["error"] for row in rows.to_table().to_pylist()} == {
        "good.bmp": None,
        "damaged.bmp": "cannot be read: damaged, or packed in a way that is not read: Bad CRC-32 for file 'damaged.bmp'",
        "encrypted.bmp": "encrypted in the archive",
        "of.bmp": "its caption is not a regular file in the archive",
        "link.bmp": "not a regular file in the archive",
    }


def _greys(path: str, catalog: Path) -> dict[str, tuple[str | None, int]]:
    """Return caption and grey of each picture that was scanned."""
    scan_sources([Source.from_path(path, "d")], catalog, workers=1)
    rows = Catalog.open(catalog).live()
    captions = dict(zip(rows.path.to_pylist(), rows.caption.to_pylist(), strict=True))
    return {path: (captions[path], grey) for path, grey in _trained(rows).items()}


def _trained(rows: CatalogRows) -> dict[str, Any]:
    """Return the grey of each picture as it is read now, or why it is not."""
    found = dict[str, Any]()
    for i, path in enumerate(rows.path.to_pylist()):
        try:
            found[path] = int(load(Request(rows.file(i), True, Shape(1, 16, 16))).mean())
        except MediaError as error:
            found[path] = str(error)
    return found


def test_what_changes_on_a_web_server_without_hashes_is_read_anew(cache: Path, tmp_path: Path) -> None:
    """Such as Python's own: the time of a change is all that it tells."""
    folder = tmp_path / "files"
    folder.mkdir()

    def write(second: int, rows: str, grey: int) -> None:
        (folder / "list.csv").write_text(f"path,text\n{rows}", encoding="utf-8")
        Image.new("RGB", (16, 16), (grey,) * 3).save(folder / "a.png")
        for file in folder.iterdir():
            os.utime(file, (second, second))

    with web_server(folder) as root:
        Image.new("RGB", (16, 16)).save(folder / "b.png")
        write(1, "a.png,old\n", 10)
        assert _greys(f"{root}/list.csv", tmp_path / "catalog") == {"a.png": ("old", 10)}
        write(2, "a.png,new\nb.png,more\n", 20)
        wanted = {"a.png": ("new", 20), "b.png": ("more", 0)}
        assert _greys(f"{root}/list.csv", tmp_path / "catalog") == wanted
        (folder / "list.csv").unlink()
        write(3, "", 30)
        assert _greys(f"{root}/", tmp_path / "folder") == {"a.png": (None, 30), "b.png": (None, 0)}


def test_a_file_that_was_replaced_after_the_scan_is_not_taken_for_the_one_scanned(cache: Path, tmp_path: Path) -> None:
    """Neither is a member of an archive; when the former ones are back, they are what is read."""
    fs, _ = storages.filesystem("s3://replaced")
    fs.mkdir("replaced")

    made: dict[int, dict[str, bytes]] = {}
    for grey in (10, 20):
        Image.new("RGB", (16, 16), (grey,) * 3).save(tmp_path / "a.bmp")  # of the same size, whatever the grey
        with tarfile.open(tmp_path / "b.tar", "w") as archive:
            archive.add(tmp_path / "a.bmp", "c.bmp")
        made[grey] = {name: (tmp_path / name).read_bytes() for name in ("a.bmp", "b.tar")}

    def upload(grey: int) -> None:
        for name, content in made[grey].items():
            fs.pipe_file(f"replaced/clips/{name}", content)

    upload(10)
    _, rows = scan("s3://replaced/clips", tmp_path / "catalog")
    for i in range(2):
        for copy in cache.glob("*/*"):
            copy.unlink()
        upload(20)
        with pytest.raises(MediaError, match=r"^the file has changed since it was scanned; scan again$"):
            load(Request(rows.file(i), True, Shape(1, 16, 16)))
        upload(10)
        assert load(Request(rows.file(i), True, Shape(1, 16, 16))).mean() == 10


@pytest.mark.parametrize("protocol", ["s3", "memory", "http", "file"])
def test_a_listing_and_a_question_tell_the_same_version_of_a_file(protocol: str, cache: Path, tmp_path: Path) -> None:
    with web_server(tmp_path) as root:
        folder = {"s3": "s3://versions", "memory": "memory://versions", "http": root, "file": f"file://{tmp_path}"}[
            protocol
        ]
        fs, path = storages.filesystem(folder)
        if protocol == "s3":
            fs.mkdir(path)
        versions = []
        for second in (1, 2):
            if protocol in ("s3", "memory"):
                fs.pipe_file(f"{path}/a.png", bytes([second]))
            else:
                (tmp_path / "a.png").write_bytes(bytes([second]))
                os.utime(tmp_path / "a.png", (second, second))
            (listed,) = list_address("d", folder).entries
            assert listed.mtime_ns == storages.version_of(storages.remote_info(fs, f"{path}/a.png"))
            versions.append(listed.mtime_ns)
    assert versions[0] != versions[1]


def test_a_storage_that_lists_a_folder_to_tell_of_one_file_is_not_asked_for_each(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FTP, GitHub and the hub do; those that tell of one file by one request are asked after each download."""
    asked: list[str] = []
    monkeypatch.setattr(MemoryFileSystem, "invalidate_cache", lambda fs, path=None: asked.append(path))
    for i in range(3):
        MemoryFileSystem().pipe_file(f"/one-by-one/{i}.png", b"a picture")

    def read(entry: Any) -> None:
        asked.clear()
        with location.local(
            location.below("memory://one-by-one", entry.path, entry.start, entry.size_bytes, entry.mtime_ns)
        ):
            pass

    one, *others = list_address("d", "memory://one-by-one").entries
    read(one)
    assert len(asked) == 1
    monkeypatch.setattr(storages, "_TELL_OF_ONE", frozenset())
    for entry in others:
        read(entry)
        assert not asked


def test_the_copies_used_last_stay(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000)

    def use(name: str, fetch: Callable[[Path], Any]) -> int:
        with cache.held(name, fetch) as copy:
            return copy.stat().st_size

    for i in range(50):
        use("always", lambda path: path.write_bytes(b"x" * 100))
        use(f"{i:02d}", lambda path: path.write_bytes(b"y" * 90))
        sizes = {file.name: file.stat().st_size for file in tmp_path.glob("*/*")}
        assert sum(sizes.values()) <= 1000
        assert {"always", f"{i:02d}"} <= sizes.keys()

    assert use("large", lambda path: path.write_bytes(b"z" * 2000)) == 2000

    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        use("never", fails)
    assert not list(tmp_path.glob("*/never*"))


def test_a_copy_stays_while_it_is_read(tmp_path: Path) -> None:
    """However many others come, by whichever process, and however small the limit is."""
    caches = [FileCache(tmp_path, 1000) for _ in range(2)]

    def fetch(path: Path) -> None:
        path.write_bytes(b"x" * 400)

    with ExitStack() as reading:
        copies = [reading.enter_context(caches[0].held(f"{i}r", fetch)) for i in range(5)]
        for i in range(5):
            with caches[1].held(f"{i}o", fetch):
                assert all(copy.stat().st_size == 400 for copy in copies)
    with caches[1].held("last", fetch):
        assert sum(file.stat().st_size for file in tmp_path.glob("*/*")) <= 1000


def test_a_copy_that_was_removed_is_fetched_again(tmp_path: Path) -> None:
    cache, fetched = FileCache(tmp_path, 1000), list[Path]()

    def fetch(path: Path) -> None:
        fetched.append(path)
        path.write_bytes(b"x")

    def read() -> bytes:
        with cache.held("name", fetch) as copy:
            if len(fetched) == 1:
                copy.unlink()
            return copy.read_bytes()

    assert retry.with_retries(read, waits_seconds=(0.0,)) == b"x"
    assert len(fetched) == 2


def test_one_copy_is_fetched_for_all_who_ask(tmp_path: Path) -> None:
    fetched = list[Path]()

    def fetch(path: Path) -> None:
        fetched.append(path)
        time.sleep(0.05)  # in which the others ask
        path.write_bytes(b"x")

    def read(_: int) -> bytes:
        with FileCache(tmp_path, 1000).held("name", fetch) as copy:
            return copy.read_bytes()

    with ThreadPoolExecutor(8) as readers:
        assert set(readers.map(read, range(8))) == {b"x"}
    assert len(fetched) == 1
    assert [file.name for file in tmp_path.glob("*/*")] == ["name"]


@pytest.mark.parametrize(
    ("status", "code", "is_refused"),
    [
        (400, "ExpiredToken", True),
        (400, "TokenRefreshRequired", True),
        (400, "InvalidToken", True),
        (403, "AccessDenied", True),
        (307, "TemporaryRedirect", True),
        (404, "NoSuchKey", False),
        (416, "InvalidRange", False),
        (500, "InternalError", False),
        (503, "SlowDown", False),
        (503, "503", False),  # of HEAD, whose answer has no more
    ],
)
def test_what_s3_refuses_is_told_by_its_status(
    status: int, code: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s3fs has an errno for each, which for an expired token is that of a wrong argument; so also of a clip's caption."""
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    told = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def refuse(*_: object) -> bytes:
        with storages.reached():
            raise translate_boto_error(ClientError(told, "GetObject"))
        raise AssertionError

    with pytest.raises(OSError, match=r".") as caught, storages.reached():
        refuse()
    assert isinstance(caught.value, PermissionError) == is_refused
    assert storages.is_of_storage(caught.value) == (is_refused or status >= 500)
    assert isinstance(caught.value, retry.BusyError) == (status == 503)
    assert isinstance(caught.value, FileNotFoundError) == (status == 404)
    assert str(caught.value).count("refuses it") == is_refused
    monkeypatch.setattr(location, "read_bytes", refuse)
    if is_refused:
        with pytest.raises(PermissionError, match=r"its caption a\.txt"):
            caption_texts._part(tmp_path / "a.mp4", ".txt")
