"""Columns of a large catalog as files that all processes of a machine map, each written when it is first used.

    columns-000012-1c0ffee5/    of version 12 of the catalog, with a digest of its parts
        height.json             the column's files with their sizes and times, written last
        height.values           numbers, one after the other; of repeated words, numbers of words
        path.bytes, .offsets, .valid    texts as Arrow lays them out

They are a cache: any of them may be deleted, and a damaged one is written anew. A folder in which nothing can be written,
or whose disk is almost full, costs each process the memory of its columns instead.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core import files, storage, system

FROM_ROWS = 500_000  # smaller catalogs are read in a second
_USED = "used.lock"
_FREE_SHARE = 0.05  # of the disk, which is left to checkpoints
Make = Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class ColumnFiles:
    """The columns of one version of a catalog, which stay while a process has them open."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> ColumnFiles | None:
        """Return the columns in a folder, and remove those beside it that nobody uses; None if none can be kept."""
        with suppress(OSError):
            folder.mkdir(exist_ok=True)
            opened, used = cls(folder), os.open(folder / _USED, os.O_RDWR | os.O_CREAT | system.BINARY)
            weakref.finalize(opened, os.close, used)
            _lock(used, shared=True)
            for other in folder.parent.glob("columns-*"):
                if other != folder and _is_free(other):
                    shutil.rmtree(other, ignore_errors=True)
            return opened if (folder / _USED).exists() else None  # it may have been removed meanwhile
        return None

    def get(self, name: str, make: Make, dtype: Any = None) -> Any:
        """Return a column, mapped; the first process that needs it writes it while others wait.

        Args:
            name: Name of the column.
            make: Yields the column in consecutive parts: numbers as numpy arrays, texts as Arrow arrays.
            dtype: Type of numbers; None for texts.

        Returns:
            A numpy array or an Arrow array, neither of which can be written to; None if it cannot be kept.
        """
        name = quote(name, safe="")
        with suppress(OSError), self.lock(name):
            stored = self._read(name, dtype)
            if stored is not None:
                return stored
            space = shutil.disk_usage(self.folder)
            if space.free < space.total * _FREE_SHARE:
                return None
            try:
                self._write(name, make(), dtype)
                return self._read(name, dtype)
            except OSError:
                for file in self.folder.glob(f"{name}.[!l]*"):  # all but the lock
                    file.unlink()
        return None

    def _read(self, name: str, dtype: Any) -> Any:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            about = json.loads((self.folder / f"{name}.json").read_bytes())
            if any(files.state(self.folder / file) != state for file, state in about["files"].items()):
                return None
            if dtype is not None:
                return np.frombuffer(self._map(f"{name}.values"), dtype=dtype)
            if about["words"] is not None:
                codes = pa.array(np.frombuffer(self._map(f"{name}.values"), dtype=np.int32))
                return pa.DictionaryArray.from_arrays(codes, pa.array(about["words"], pa.string()))
            parts = [pa.py_buffer(self._map(f"{name}.{part}")) for part in ("valid", "offsets", "bytes")]
            valid = parts[0] if parts[0].size else None
            return pa.LargeStringArray.from_buffers(parts[1].size // 8 - 1, parts[1], parts[2], valid)
        return None

    def _map(self, file: str) -> Any:
        with (self.folder / file).open("rb") as f:
            return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if f.seek(0, 2) else b""

    def _write(self, name: str, chunks: Iterable[Any], dtype: Any) -> None:
        written: list[Path] = []

        @contextmanager
        def new(part: str) -> Iterator[BinaryIO]:
            file = self.folder / f"{name}.{part}"
            file.unlink(missing_ok=True)  # who maps the former file keeps it
            with file.open("wb") as f:
                yield f
                f.flush()
                storage.fsync(f.fileno(), file)
            written.append(file)

        words: dict[str, int] | None = None
        iterator = iter(chunks)
        first: Any = next(iterator, np.zeros(0, dtype))
        if dtype is not None:
            with new("values") as f:
                for chunk in chain([first], iterator):
                    f.write(np.ascontiguousarray(chunk, dtype=dtype).data)
        elif pa.types.is_dictionary(first.type):
            words = {}
            with new("values") as f:
                for chunk in chain([first], iterator):
                    codes = [words.setdefault(word, len(words)) for word in chunk.dictionary.to_pylist()]
                    f.write(np.array([*codes, 0], dtype=np.int32)[chunk.indices.to_numpy()].data)
        else:
            with new("bytes") as texts, new("offsets") as offsets, new("valid") as valid:
                _write_texts(chain([first], iterator), texts, offsets, valid)
        states = {file.name: files.state(file) for file in written}
        files.write_json(self.folder / f"{name}.json", {"files": states, "words": words and list(words)})

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Wait for a lock; on a file system without locks each machine writes the column, with equal results."""
        with (self.folder / f"{name}.lock").open("ab") as f:
            _lock(f.fileno())
            yield


def _write_texts(chunks: Iterable[Any], texts: BinaryIO, offsets: BinaryIO, valid: BinaryIO) -> None:
    end, missing = 0, []
    offsets.write(np.zeros(1, dtype=np.int64).data)
    for chunk in chunks:
        filled = chunk.fill_null("")
        lengths = pc.binary_length(filled).to_numpy().astype(np.int64)
        offsets.write((end + np.cumsum(lengths)).data)
        _, _, data = filled.buffers()
        if len(filled) and data is not None:
            own = np.frombuffer(filled.buffers()[1], dtype=np.int64)[filled.offset :]
            texts.write(data[int(own[0]) : int(own[len(filled)])])
        end += int(lengths.sum())
        missing.append(chunk.is_null().to_numpy(zero_copy_only=False))
    if any(mask.any() for mask in missing):
        valid.write(np.packbits(~np.concatenate(missing), bitorder="little").data)


def _lock(file: int, *, shared: bool = False) -> None:
    with suppress(OSError):  # a file system without locks
        system.lock(file, shared=shared, wait=True)


def _is_free(folder: Path) -> bool:
    """Return whether no process, of any machine, has the columns in a folder open."""
    with suppress(OSError):
        with (folder / _USED).open("ab") as f:
            system.lock(f.fileno())
        return True
    return False
