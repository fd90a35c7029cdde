"""A folder of stored tensors, found by the digest of what they were computed from.

    format.json
    shards/<name>.safetensors   tensors of one commit; its header describes each
    index/<name>.parquet        the same descriptions, which are read at the start

A commit writes a shard, then its index, each under a temporary name that is synced and renamed, and never changes
either. A kill loses what was not committed. A shard whose index is missing describes itself and is indexed at the next
start. Several processes may read and write at once: no file has two writers.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from reelworks.core import digests, files, storage, units
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.checkpoint import safetensors_header
from reelworks.data.run import lock
from reelworks.data.run.lock import LockHandle
from reelworks.training.encoding import values
from reelworks.training.encoding.request_key import TEXT, Wanted, key_words

FORMAT_VERSION = 1
_WANTED = tuple(field.name for field in fields(Wanted))
_PLACE = ("key", "offset", "bytes", "dtype", "shape", "checksum")
_NUMBERS = {"offset": pa.int64(), "bytes": pa.int64(), "shape": pa.list_(pa.int64())}  # all others are texts
SCHEMA = pa.schema(
    [pa.field(name, _NUMBERS.get(name, pa.string()), nullable=False) for name in dict.fromkeys((*_PLACE, *_WANTED))]
)
_DESCRIPTION = "reelworks"  # key of a shard's header under which its tensors are described
_COMMIT_BYTES = 256_000_000
_COMMIT_SECONDS = 30.0
_OPEN_SHARDS = 256
_STRAY_SECONDS = 3600.0


class DamagedEntry(Exception):  # noqa: N818
    """A stored tensor is missing or differs from its checksum."""


@dataclass(frozen=True)
class StoredEntry:
    """A stored tensor and its place."""

    key: str
    shard: str
    offset: int
    bytes: int
    dtype: str
    shape: list[int]
    checksum: str


class EncodedStore:
    """Stored tensors by key; safe to use from several threads, and by several processes at once.

    Attributes:
        refused: Why a value is not stored that this process has computed, by its key: computed again, it would be the same.

    Examples:
        >>> import tempfile, torch
        >>> from reelworks.training.encoding.request_key import Wanted
        >>> from reelworks.training.encoding.store import EncodedStore
        >>> store = EncodedStore.open(tempfile.mkdtemp())
        >>> wanted = Wanted("00" * 16, "latent", "autoencoder", "content", "a.mp4", "{}")
        >>> store.put(wanted, torch.ones(2, 3))
        >>> store.commit()
        >>> EncodedStore.open(store.path).read(wanted.key).shape
        torch.Size([2, 3])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refused = dict[str, str]()
        self._lock = threading.RLock()
        self._parts = set[str]()
        self._words: NDArray[np.uint64] = np.zeros((0, 2), dtype=np.uint64)
        self._places: list[tuple[Any, int, str]] = []  # table, first position and shard of the parts read at the start
        self._position: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._first: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._added = dict[str, StoredEntry]()
        self._pending = dict[str, tuple[Wanted, Tensor]]()
        self._pending_bytes, self._pending_since = 0, 0.0
        self._map = lru_cache(_OPEN_SHARDS)(partial(_mapped, path))

    @classmethod
    def open(cls, path: str | Path) -> EncodedStore:
        """Open a folder, which is created if it does not exist, and index shards that a kill left without one.

        Raises:
            UserError: The folder cannot be written, is damaged, or was written by a newer Reelworks.
        """
        store = cls(Path(path))
        store._create()
        store._index_orphans()
        store._load()
        return store

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return key in self._pending or self._entry(key) is not None

    @property
    def is_empty(self) -> bool:
        """Whether no value is stored."""
        return not len(self._words) and not self._added

    def missing(self, keys: Sequence[str]) -> set[str]:
        """Return the keys whose values are not stored."""
        with self._lock:
            new = [key for key in dict.fromkeys(keys) if key not in self._added and key not in self._pending]
            if not len(self._words) or not new:
                return set(new)
            words = key_words(new)
            first, last = (np.searchsorted(self._words[:, 0], words[:, 0], side=s) for s in ("left", "right"))
            # All but a few keys differ from all others in their first half already.
            return {
                key
                for key, low, start, end in zip(new, words[:, 1], first.tolist(), last.tolist(), strict=True)
                if not (self._words[start:end, 1] == low).any()
            }

    def read(self, key: str) -> Tensor:
        """Return a stored tensor on the CPU, after its checksum was compared.

        Raises:
            KeyError: It is not stored.
            DamagedEntry: Its bytes are lost or changed.
        """
        with self._lock:
            if key in self._pending:
                return self._pending[key][1]
            entry = self._entry(key)
        if entry is None:
            raise KeyError(key)
        return self._read(entry)

    def put(self, wanted: Wanted, value: Tensor) -> None:
        """Store a tensor with the next commit, which happens by itself after 256 MB or half a minute.

        One with infinities or NaN, of which nothing can be learnt, is among the `refused` ones instead.

        Raises:
            UserError: See `commit`.
        """
        value = value.detach().to("cpu", copy=True).contiguous()
        if not values.is_finite(wanted.kind, value):
            precise = (
                "" if wanted.kind == TEXT else 'let it compute in float32, as with autoencoder.dtype = "float32", or '
            )
            remedy = f"{precise}use other weights for its encoder"
            self.refused[wanted.key] = f"the {wanted.kind} of {wanted.label} holds infinities or NaN; {remedy}"
            return
        with self._lock:
            if not self._pending:
                self._pending_since = time.monotonic()
            self._pending[wanted.key] = (wanted, value)
            self._pending_bytes += value.nbytes
            if self._pending_bytes >= _COMMIT_BYTES or time.monotonic() - self._pending_since >= _COMMIT_SECONDS:
                self.commit()

    def commit(self) -> None:
        """Write all tensors that were put; those that cannot be written are forgotten.

        Raises:
            UserError: The disk is full, or the folder cannot be written.
        """
        with self._lock:
            if not self._pending:
                return
            rows, data = _shard(self._pending.values())
            self._pending, self._pending_bytes = {}, 0
            # The last of several entries of a key counts, also where a clock went back, or that of another node is ahead.
            last = max((int(part.partition("-")[0]) for part in self._parts), default=0)
            name = f"{max(time.time_ns(), last + 1):020d}-{uuid.uuid4().hex[:8]}"
            with files.writing("encode.folder", self.path):
                files.write_bytes(_shard_file(self.path, name), data)
                files.write_bytes(self._index_file(name), _parquet(rows))
            self._parts.add(name)
            self._added.update((row["key"], _entry(row, name)) for row in rows)

    def refresh(self) -> None:
        """Learn of what other processes have committed."""
        with self._lock:
            for name in sorted(self._index_files() - self._parts):
                self._added.update((row["key"], _entry(row, name)) for row in self._whole_rows(name).to_pylist())
                self._parts.add(name)

    def forget(self, key: str) -> None:
        """Take a damaged tensor for missing in this process, so that it is encoded and stored again."""
        with self._lock:
            self._added.pop(key, None)
            if (at := self._find(key)) >= 0:
                keep = np.arange(len(self._words)) != at
                self._words, self._position = self._words[keep], self._position[keep]

    def table(self) -> pa.Table:
        """Return the descriptions of all tensors with their shards; of equal keys, that of the last one."""
        tables = []
        for name in sorted(self._index_files()):
            part = _read_index(self._index_file(name), SCHEMA.names)
            tables.append(part.append_column("shard", pa.array([name] * len(part), type=pa.string())))
        empty = SCHEMA.append(pa.field("shard", pa.string())).empty_table()
        found = pa.concat_tables([empty, *tables]).combine_chunks()
        _, last = np.unique(key_words(found.column("key").to_pylist())[::-1], axis=0, return_index=True)
        return found.take(pa.array(np.sort(len(found) - 1 - last)))

    def verify(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Read every tensor, and yield the description of each with what is wrong, or an empty text."""
        for name in sorted(self._index_files()):
            for row in filter(partial(self._counts, name), _rows_of(self._index_file(name))):
                problem = ""
                try:
                    self._read(_entry(row, name))
                except DamagedEntry as damage:
                    problem = str(damage)
                if not problem or self._index_file(name).exists():  # another process may have moved or deleted it
                    yield row, problem

    def remove(self, keys: set[str]) -> int:
        """Delete tensors, and those that others of their keys replaced; return the bytes of the files that became free.

        Shards with others are written anew, those with the fewest bytes of them first, so that there is room for the next;
        on a disk without any, the others of a shard are deleted too. One process at a time deletes.
        """
        remedy = "wait until it has ended"
        with lock.hold(self.path / ".lock", doing="deletion", field="encode.folder", remedy=remedy) as held:
            self._load()  # another process may have deleted before, and moved what stays into other shards
            found = ((name, self._kept(name, keys)) for name in sorted(self._index_files()))
            kept_bytes = {name: sum(row["bytes"] for row in kept) for name, kept in found if kept is not None}
            freed = sum(self._replace(name, keys, held) for name in sorted(kept_bytes, key=kept_bytes.__getitem__))
            self._load()
        return freed

    def _replace(self, name: str, keys: set[str], held: LockHandle) -> int:
        """Delete a shard but for what stays without these keys, which goes into a new one; return the bytes that became free."""
        shard = _shard_file(self.path, name)
        freed = shard.stat().st_size if shard.exists() else 0
        freed -= self._copy(self._kept(name, keys) or [], name)
        held.check()
        storage.unlink(self._index_file(name))  # first, so that no index ever names a missing shard
        self._map.cache_clear()  # Windows removes no file that is mapped
        if shard.exists():
            storage.unlink(shard)
        return freed

    def _kept(self, name: str, keys: set[str]) -> list[dict[str, Any]] | None:
        """Return the descriptions of a shard that stay when these keys go; None if all stay."""
        rows = _rows_of(self._index_file(name))
        kept = [row for row in rows if row["key"] not in keys and self._counts(name, row)]
        return kept if len(kept) < len(rows) else None

    def _copy(self, rows: list[dict[str, Any]], name: str) -> int:
        """Write rows of a shard into a new one that takes its place; return its bytes, 0 if there is no room for it."""
        values = []
        for row in rows:
            with suppress(DamagedEntry):  # which is of no use, and will be encoded again
                values.append((Wanted(*(row[field] for field in _WANTED)), self._read(_entry(row, name))))
        if not values:
            return 0
        written, data = _shard(values)
        # The name begins with the former one's time: an entry must not become newer than its successor.
        new = f"{name.split('-')[0]}-{uuid.uuid4().hex[:8]}"
        try:
            files.write_bytes(_shard_file(self.path, new), data)
            files.write_bytes(self._index_file(new), _parquet(written))
        except OSError as error:
            _shard_file(self.path, new).unlink(missing_ok=True)
            if error.errno not in files.FULL:
                raise
            logger.warning(
                "no room to keep %s beside what is deleted; they will be encoded again",
                units.plural(len(values), "entry"),
            )
            return 0
        return len(data)

    def _create(self) -> None:
        try:
            for folder in (self.path / "shards", self.path / "index"):
                folder.mkdir(parents=True, exist_ok=True)
            about = self.path / "format.json"
            if not about.exists():
                files.write_json(about, {"format": FORMAT_VERSION})
            stored = json.loads(about.read_text(encoding="utf-8"))["format"]
        except OSError as error:
            raise files.unwritable("encode.folder", self.path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(self.path, f"format.json cannot be read ({error})") from error
        if stored != FORMAT_VERSION:
            raise UserError(
                f"its format is {stored}, this version reads {FORMAT_VERSION}",
                code="encoded-format",
                field="encode.folder",
                value=str(self.path),
                remedy="name another folder, or use the version of Reelworks that wrote it",
            )

    def _index_orphans(self) -> None:
        """Index shards whose writer was killed before it wrote the index, and remove temporary files it left."""
        for path in (self.path / "shards").iterdir():
            try:
                if path.suffix == ".tmp" and time.time() - path.stat().st_mtime > _STRAY_SECONDS:
                    path.unlink(missing_ok=True)
                index = self._index_file(path.stem)
                if path.suffix == ".safetensors" and not index.exists():
                    files.write_bytes(index, _parquet(_described(path)))
            except OSError:
                continue  # another process was faster, or the folder cannot be written
            except (ValueError, KeyError, TypeError) as error:
                raise damaged(self.path, f"shards/{path.name} cannot be read ({error})") from error

    def _whole_rows(self, name: str) -> pa.Table:
        """Return the places of the tensors of a shard that is as long as its index says, or of those that it has."""
        table, shard = _read_index(self._index_file(name), _PLACE), _shard_file(self.path, name)
        size = shard.stat().st_size if shard.exists() else 0
        ends = pc.add(table.column("offset"), table.column("bytes"))
        return table.filter(pc.less_equal(ends, size)).combine_chunks()

    def _counts(self, name: str, row: Mapping[str, Any]) -> bool:
        """Whether a description in a shard's index is not replaced by one of the same key."""
        with self._lock:
            entry = self._entry(row["key"])
        return entry is None or entry.shard == name or not self._index_file(entry.shard).exists()

    def _load(self) -> None:
        with self._lock:
            names, self._added = sorted(self._index_files()), {}
            tables = [self._whole_rows(name) for name in names]
            sizes = np.array([len(table) for table in tables], dtype=np.int64)
            self._first = np.cumsum(sizes) - sizes
            self._places = [(table, int(at), name) for table, at, name in zip(tables, self._first, names, strict=True)]
            words = key_words([key for table in tables for key in table.column("key").to_pylist()])
            # Stable, so that the last of several entries of one key is the last of its run.
            self._position = np.lexsort((words[:, 1], words[:, 0]))
            self._words = words[self._position]
            self._parts = set(names)

    def _find(self, key: str) -> int:
        """Return the position of a key in the sorted index, -1 if it is not there."""
        high, low = key_words([key])[0]
        first, last = (int(np.searchsorted(self._words[:, 0], high, side=s)) for s in ("left", "right"))
        at = np.flatnonzero(self._words[first:last, 1] == low)
        return first + int(at[-1]) if len(at) else -1

    def _entry(self, key: str) -> StoredEntry | None:
        if key in self._added:
            return self._added[key]
        at = self._find(key)
        if at < 0:
            return None
        position = int(self._position[at])
        table, first, name = self._places[int(np.searchsorted(self._first, position, side="right")) - 1]
        return _entry({field: table.column(field)[position - first].as_py() for field in _PLACE}, name)

    def _read(self, entry: StoredEntry) -> Tensor:
        data = np.array(self._map(entry.shard)[entry.offset : entry.offset + entry.bytes])
        if len(data) != entry.bytes or digests.of_bytes(data.tobytes()) != entry.checksum:
            raise DamagedEntry(f"shards/{entry.shard}.safetensors: bytes {entry.offset:,} and on differ from the index")
        flat = torch.from_numpy(data) if len(data) else torch.zeros(0, dtype=torch.uint8)
        return flat.view(getattr(torch, entry.dtype)).reshape(entry.shape)

    def _index_file(self, name: str) -> Path:
        return self.path / "index" / f"{name}.parquet"

    def _index_files(self) -> set[str]:
        return {path.stem for path in (self.path / "index").glob("*.parquet") if not path.name.startswith(".")}


def _shard_file(store: Path, name: str) -> Path:
    return store / "shards" / f"{name}.safetensors"


def _mapped(store: Path, shard: str) -> NDArray[np.uint8]:
    try:
        return np.memmap(_shard_file(store, shard), dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise DamagedEntry(f"shards/{shard}.safetensors cannot be read ({error})") from error


def _shard(values: Iterable[tuple[Wanted, Tensor]]) -> tuple[list[dict[str, Any]], bytes]:
    """Return the descriptions and the bytes of a shard."""
    tensors, rows = dict[str, Tensor](), dict[str, dict[str, Any]]()
    for wanted, value in values:
        raw = safetensors_header.raw(value).numpy()
        tensors[wanted.key] = value
        rows[wanted.key] = {
            **{field: getattr(wanted, field) for field in _WANTED},
            "bytes": value.nbytes,
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "checksum": digests.of_bytes(raw.tobytes()),
        }
    data = save(tensors, metadata={_DESCRIPTION: json.dumps(list(rows.values()))})
    offsets = _offsets(data)
    return [row | {"offset": offsets[key]} for key, row in rows.items()], data


def _offsets(data: bytes) -> dict[str, int]:
    """Return the position of each tensor in the bytes of a safetensors file, or in its beginning."""
    length = int.from_bytes(data[:8], "little")
    header: Mapping[str, Any] = json.loads(data[8 : 8 + length])
    return {name: 8 + length + t["data_offsets"][0] for name, t in header.items() if name != "__metadata__"}


def _described(path: Path) -> list[dict[str, Any]]:
    """Return the descriptions in a shard's own header."""
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if length > path.stat().st_size:
            raise ValueError("its header is cut off")
        start += file.read(length)
    offsets = _offsets(start)
    rows = json.loads(json.loads(start[8:])["__metadata__"][_DESCRIPTION])
    return [row | {"offset": offsets[row["key"]]} for row in rows]


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())


def _read_index(path: Path, columns: Iterable[str]) -> pa.Table:
    try:
        table = pq.read_table(path, columns=list(columns), schema=SCHEMA, page_checksum_verification=True)
    except FileNotFoundError:  # another process deletes from the store meanwhile
        return pa.schema([SCHEMA.field(name) for name in columns]).empty_table()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise damaged(path.parent.parent, f"index/{path.name} cannot be read ({error})") from error
    if table.column("key").null_count:  # as of a table that has no such column
        raise damaged(path.parent.parent, f"index/{path.name} is no index")
    return table


def _rows_of(path: Path) -> list[dict[str, Any]]:
    return list(_read_index(path, SCHEMA.names).to_pylist())


def _entry(row: Mapping[str, Any], shard: str) -> StoredEntry:
    return StoredEntry(shard=shard, **{field: row[field] for field in _PLACE})


def damaged(path: Path, problem: str) -> UserError:
    """Return the error for a store that cannot be read."""
    return UserError(
        f"the stored latents are damaged: {problem}",
        code="encoded-damaged",
        field="encode.folder",
        value=str(path),
        remedy="delete that file, so that what it holds is encoded again",
    )
