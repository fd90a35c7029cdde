"""Drills of odd files: pipes, devices, sparse files and odd archives wherever a user's file is read.

Each must give a reason or a `UserError`, within seconds and without taking memory, and leave a catalog that can be read.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import s3_server
from odd_archives import odd_members, picture, png, scanned, write_tar

from reelworks.annexes.imports.opensora import literals
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.buckets import tuned
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import exclude_file
from reelworks.data.media import storages
from reelworks.data.media.decode import Request, load
from reelworks.data.media.reading import MediaError
from reelworks.data.schedule import cost
from reelworks.inference.evaluate import clips, report
from reelworks.inference.generate import vbench_files
from reelworks.training.recipe import recipe_file

_SECONDS, _MOST_BYTES = 30.0, 400_000_000
_HUGE = 8 << 30


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # an address has 107 bytes at most
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_HUGE)


# Files that are not what their names say.
ODD: dict[str, Callable[[Path], None]] = {
    "pipe": _fifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "itself": lambda path: path.symlink_to(path.name),
    "sparse": _sparse,
}


def _beside(name: str) -> Callable[[Path, Callable[[Path], None]], list[str]]:
    """Scan a folder of a good picture and one with an odd file beside it, or in its place."""

    def work(folder: Path, odd: Callable[[Path], None]) -> list[str]:
        data = folder / "data"
        data.mkdir()
        picture(data / "good.png")
        if not name.startswith(("b.png", "b.mp4", "b.tar")):
            picture(data / "b.png")
        odd(data / name)
        rows = scanned(data, folder / "catalog")
        if rows["good.png"]["error"] is not None:
            return [f"the good one is refused: {rows['good.png']['error']}"]
        row = rows.get("b.png" if name.endswith((".txt", ".caption")) else name)
        is_folder = (data / name).is_dir()
        if row is None:
            is_empty = name == "b.tar" and (data / name).is_file()  # zeros are an archive of nothing
            return [] if is_folder or is_empty else ["it has no row"]
        return [] if row["error"] or is_folder else ["it is taken for a good one"]

    return work


def _listed(name: str) -> Callable[[Path, Callable[[Path], None]], list[str]]:
    def work(folder: Path, odd: Callable[[Path], None]) -> list[str]:
        odd(folder / name)
        return _told(lambda: scanned(folder / name, folder / "catalog"))

    return work


def _in_list(folder: Path, odd: Callable[[Path], None]) -> list[str]:
    """Scan a list of a good picture and an odd one, with captions in files of which one is odd."""
    picture(folder / "good.png")
    picture(folder / "c.png")
    odd(folder / "b.png")
    odd(folder / "c.txt")
    (folder / "list.csv").write_text("path\ngood.png\nb.png\nc.png\n", encoding="utf-8")
    rows = scanned(folder / "list.csv", folder / "catalog")
    wrong = [name for name in ("b.png", "c.png") if not rows[name]["error"] and not (folder / "c.txt").is_dir()]
    return ["the good one is refused"] * bool(rows["good.png"]["error"]) + [f"{name} is taken" for name in wrong]


def _told(work: Callable[[], Any]) -> list[str]:
    try:
        work()
    except UserError:
        return []
    return ["nothing is told"]


def _named(name: str, read: Callable[[Path], Any]) -> Callable[[Path, Callable[[Path], None]], list[str]]:
    def work(folder: Path, odd: Callable[[Path], None]) -> list[str]:
        odd(folder / name)
        return _told(lambda: read(folder / name))

    return work


def _later(name: str) -> Callable[[Path, Callable[[Path], None]], list[str]]:
    """Read a file that was good at the scan and is odd now."""

    def work(folder: Path, odd: Callable[[Path], None]) -> list[str]:
        odd(folder / name)
        try:
            load(Request(folder / name, name.endswith(".png"), Shape(1, 16, 16)))
        except MediaError:
            return []
        return ["it is decoded"]

    return work


def _measured(folder: Path, odd: Callable[[Path], None]) -> list[str]:
    """Measure a folder with an odd caption."""
    picture(folder / "a.png")
    odd(folder / "a.txt")
    found = list(clips.read({"a": folder / "a.png"}))
    return [] if len(found) == 1 else ["it is left out in silence"]


# Places where a user's file is read.
READERS: dict[str, Callable[[Path, Callable[[Path], None]], list[str]]] = {
    **{f"scan, {name}": _beside(name) for name in ("b.txt", "b.caption", "b.1.txt", "b.png", "b.mp4", "b.tar")},
    **{f"list, {name}": _listed(name) for name in ("l.csv", "l.jsonl", "l.parquet")},
    "files of a list": _in_list,
    **{f"decode, {name}": _later(name) for name in ("b.png", "b.gif", "b.mp4", "b.avi")},
    "recipe": _named("recipe.toml", recipe_file.load),
    "exclude list": _named("exclude.txt", lambda path: exclude_file.read_list(str(path))),
    "batch sizes": _named("tuned.json", lambda path: tuned.read(str(path))),
    "costs": _named("costs.json", lambda path: cost.read_measured(str(path), ["a"])),
    "prompts": _named("prompts.txt", lambda path: vbench_files.prompts(path, "--prompt-file")),
    "VBench's result": _named("r.json", report.vbench_results),
    "Open-Sora's config": _named("c.py", literals.read),
    "captions of eval": _measured,
}


def within_bounds(work: Callable[[], list[str]], seconds: float = _SECONDS) -> list[str]:
    """Return what work finds wrong, in a child process that is killed after some time and may not take much memory."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.close(read)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            wrong = work()
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"[:300]]
        if (more := 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)) > _MOST_BYTES:
            wrong = [*wrong, f"it takes {more / 1e6:.0f} MB"]
        os.write(write, json.dumps(wrong).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123
        ended = bool(select.select([pipe], [], [], seconds)[0])
        if not ended:
            os.kill(child, signal.SIGKILL)
        told = pipe.read() if ended else b'["it hangs"]'
    os.waitpid(child, 0)
    found: list[str] = json.loads(told or b'["it died"]')
    return found


def cases() -> Iterator[tuple[str, Callable[[Path], list[str]]]]:
    """Every odd file in every place."""
    for reader, work in READERS.items():
        for name, odd in ODD.items():
            yield f"{reader}: {name}", lambda folder, work=work, odd=odd: work(folder, odd)


def odd_files(chance: random.Random, folder: Path) -> list[str]:
    """An odd file in a place where one is read gives a reason."""
    name, work = chance.choice(list(cases()))
    return [f"{name}: {problem}" for problem in within_bounds(lambda: work(folder))]


def odd_archive(chance: random.Random, folder: Path) -> list[str]:
    """An odd archive gives rows that the catalog reads, again after the next scan, and the good members are trained."""
    name, members = chance.choice(list(odd_members().items()))
    return [f"{name}: {problem}" for problem in within_bounds(lambda: scan_archive(folder, members))]


def scan_archive(folder: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> list[str]:
    """Scan an archive beside a good picture twice; the catalog can be read, and a good member or a reason is there."""
    data = folder / "data"
    data.mkdir()
    picture(data / "own.png")
    write_tar(data / "x.tar", members)
    rows = scanned(data, folder / "catalog")
    again = scanned(data, folder / "catalog")
    good = rows.get("x.tar/good.png", rows.get("x.tar"))
    wrong = ["the file beside it is refused"] * bool(rows["own.png"]["error"])
    wrong += ["neither the good member nor the archive has a row"] * (good is None)
    return wrong + ["the next scan has other rows"] * (rows.keys() != again.keys())


def fuzzed_archive(chance: random.Random, folder: Path) -> list[str]:
    """An archive some of whose header bytes are others."""
    data = folder / "data"
    data.mkdir()
    members = [member for members in chance.sample(list(odd_members().values()), 2) for member in members]
    tar = write_tar(data / "x.tar", members)
    content = bytearray(tar.read_bytes())
    for _ in range(chance.randint(1, 6)):
        header = 512 * chance.randrange(len(content) // 512)
        content[header + chance.choice([*range(100, 160), 257, *range(345, 360)])] = chance.choice(
            [*b"0157\x00\x80\xff x"]
        )
    tar.write_bytes(content)
    picture(data / "own.png")
    return within_bounds(lambda: ["own.png is refused"] * bool(scanned(data, folder / "catalog")["own.png"]["error"]))


@functools.cache
def _server() -> None:
    """Start an S3 server that serves until this process ends, and set the variables that lead to it."""
    opened = contextlib.ExitStack()
    address = opened.enter_context(s3_server.serve())
    atexit.register(opened.close)
    os.environ.update(s3_server.CREDENTIALS, AWS_ENDPOINT_URL=address)


def _odd_object(data: Path, name: str) -> None:
    """Write what a bucket may hold beside good clips."""
    (data / name).parent.mkdir(parents=True, exist_ok=True)
    content = {".txt": b"a" * (2 << 20), ".tar": b"\x1f\x8b" + bytes(600), ".mp4": b"", ".gif": png()}
    (data / name).write_bytes(content.get(Path(name).suffix, png()))


_OBJECTS = (
    "good.txt", "cut.tar", "none.mp4", "still.gif", "in.png/a.png", "x y#z?.png", "50%25 + 1%.png", "\u65e5\u672c \u00e4.png",
    "a.tar/b.png", "[1].png", "*.png", ".hidden.png", "~.png", "con:.png", "a..png", "'\".png",
)  # fmt: skip


def bucket(chance: random.Random, folder: Path) -> list[str]:
    """A bucket of odd objects and archives has the rows that a folder of the same files has; what has gone is told."""
    _server()
    data = folder / "data"
    data.mkdir()
    picture(data / "good.png")
    for name in chance.sample(_OBJECTS, 3):
        _odd_object(data, name)
    for number, (_, members) in enumerate(chance.sample(list(odd_members().items()), 2)):
        (data / "x.tar").mkdir(exist_ok=True)
        write_tar(data / "x.tar" / f"{number}.tar", members)
    return within_bounds(lambda: _compare_bucket(data, folder, f"bucket-{chance.getrandbits(60)}"))


def _compare_bucket(data: Path, folder: Path, name: str) -> list[str]:
    os.environ["REELWORKS_CACHE"] = str(folder / "cache")
    fs, _ = storages.filesystem(f"s3://{name}")
    fs.mkdir(name)
    for file in sorted(data.rglob("*")):
        if file.is_file():
            fs.put_file(str(file), f"{name}/clips/{file.relative_to(data)}")
    wanted, found = scanned(data, folder / "own"), scanned(f"s3://{name}/clips", folder / "catalog")
    fs.rm_file(f"{name}/clips/good.png")
    gone = Catalog.open(folder / "catalog").live()
    wrong = [f"{path} is {row} of {len(wanted)}" for path, row in wanted.items() if path not in found]
    wrong += [f"{path} is in the bucket alone" for path in found if path not in wanted]
    told = ((path, wanted[path], row) for path, row in found.items() if path in wanted)
    wrong += [
        f"{path}: {own['error']} in the folder, {row['error']} in the bucket"
        for path, own, row in told
        if (own["error"] is None, own["caption"], own["width"]) != (row["error"] is None, row["caption"], row["width"])
    ]
    for index, row in enumerate(gone.to_table().to_pylist()):
        has_gone = row["path"] == "good.png"
        if row["error"] or (has_gone and not row["fingerprint"]):
            continue
        if has_gone:
            shutil.rmtree(folder / "cache", ignore_errors=True)
        try:
            load(Request(gone.file(index), row["kind"] == "image", Shape(1, 16, 16)))
        except MediaError as error:
            wrong += [] if has_gone else [f"{row['path']} is not read: {error}"]
        else:
            wrong += ["what has gone is read"] if has_gone else []
    return wrong


DRILLS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "odd files": odd_files,
    "odd archives": odd_archive,
    "archives of odd bytes": fuzzed_archive,
    "odd objects of S3": bucket,
}
