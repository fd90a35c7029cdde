"""Records of segments: which clips a segment planned, why the others were left out, and how it ended.

A segment's folder below `coverage/` is written when the segment begins, before its first step, and committed
atomically: files, then `about.json` with their checksums, then a rename. `outcome.json` is added when the segment
ends. Clips are rows, by ordinal, of a catalog that the run copies next to the records.

    places.parquet         the planned clips in the order of the steps: ordinal, copy, repeat_index
    micro_batches.parquet  plan_step, column, bucket and size of each micro-batch in the same order
    others.parquet         the live clips that were not planned: ordinal, copy, reason, nearest entry, note
    aliases.parquet        ordinals of clips that the run first used under another uid, and that uid as their key
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from reelworks.core import digests, files, storage, user_files
from reelworks.core.arrays import I32, I64, U64, Mask
from reelworks.core.config import Config
from reelworks.data.run.folder import RunFolder

FORMAT_VERSION = 1
ALIASES = "aliases.parquet"
CONSUMED = "consumed"  # reason of a clip that an earlier segment of the epoch consumed
Key = tuple[int, int, int]
_Values = TypeVar("_Values", bound=Config)

_ABOUT = "about.json"
_OUTCOME = "outcome.json"
_TOTALS = "totals.jsonl"
_OTHERS = "others.parquet"
_NAME = re.compile(r"segment-(\d{3,})-(\d{6,})-(\d{3,})")
_SPLIT = "BYTE_STREAM_SPLIT"  # for unsorted numbers, whose upper bytes are mostly zeros
_ASCENDING = "DELTA_BINARY_PACKED"
_TYPES = {"repeat_index": np.int32, "other_nearest": np.int32, "alias_key": np.uint64}  # all others are int64


class _Numbers(NamedTuple):
    """Columns of numbers in a file, the encodings of some of them, and what precedes their names in a `Record`."""

    names: tuple[str, ...]
    encodings: dict[str, str]  # all others are dictionary-encoded
    prefix: str = ""


_NUMBERS = {
    "places.parquet": _Numbers(("ordinal", "copy", "repeat_index"), {"ordinal": _SPLIT}),
    "micro_batches.parquet": _Numbers(
        ("plan_step", "column", "bucket", "size"), {"plan_step": _ASCENDING, "column": _ASCENDING}
    ),
    _OTHERS: _Numbers(("ordinal", "copy", "nearest"), {"ordinal": _ASCENDING}, "other_"),
    ALIASES: _Numbers(("ordinal", "key"), {"ordinal": _ASCENDING, "key": _SPLIT}, "alias_"),
}


class RecordError(Exception):
    """A record is missing or damaged; the message says which and why."""


class BucketShape(Config):
    """A bucket of a segment."""

    name: str
    num_frames: int
    height: int
    width: int
    batch_size: int


class About(Config):
    """Metadata of a record, stored as `about.json`.

    Attributes:
        time: When the record was written, in seconds since 1970.
        stage: Name of the recipe's stage; empty without stages.
        first_step: Optimizer steps of the run before the segment's first.
        steps: Optimizer steps of the plan.
        catalog_digest, spec_digest: Digests of the plan's inputs.
        recipe: File of the recipe, below `recipes/`.
        exclude_list, costs: Copies of the files that the recipe names, below `recipes/`.
        catalog: Folder of the run's copy of the catalog, below `coverage/`.
        catalog_version: Number of parts of the catalog that the segment was planned on.
        catalog_uids: Digest of the uids of all rows of these parts.
        entries: Entries of the bucket table, as reports print them.
        uses: Resolutions and lengths by which the uses of a clip are numbered, of the datasets that name some.
        files: Checksums of the record's other files.
    """

    format: int = FORMAT_VERSION
    data_restarts: int
    epoch: int
    segment: int
    stage: str = ""
    time: float
    first_step: int
    steps: int
    planned: int
    plan: str
    catalog_digest: str
    spec_digest: str
    spec: dict[str, Any]
    recipe: str
    exclude_list: str | None
    costs: str | None
    catalog: str
    catalog_version: int
    catalog_uids: str
    datasets: list[str]
    buckets: list[BucketShape]
    entries: list[str]
    uses: dict[str, list[list[Any]]] = Field(default={})
    files: dict[str, str] = Field(default={})

    @property
    def key(self) -> Key:
        """Generation, epoch and segment."""
        return self.data_restarts, self.epoch, self.segment


class RecordedFailure(Config):
    """A planned clip that could not be decoded: its step in the plan, its identity, and the reason."""

    plan_step: int
    uid: int
    copy_index: int
    reason: str


class Outcome(Config):
    """End of a segment.

    Attributes:
        steps: Number of steps that were trained or skipped; the clips of later steps are left to another segment.
        skipped: Steps of the plan that were not applied.
    """

    steps: int
    skipped: list[int] = Field(default=[])
    failures: list[RecordedFailure] = Field(default=[])


@dataclass(frozen=True)
class Record:
    """Clips that a segment planned, and why it left out the others.

    Attributes:
        ordinal, copy, repeat_index: The planned clips in the order of the steps, as in `EpochPlan`.
        plan_step, column, bucket, size: The micro-batches in the same order; `size` counts clips, padding included.
        other_ordinal, other_copy: Live clips that are not planned.
        other_reason: Why each is not planned, as an index into `labels`.
        other_nearest: Index of the bucket entry that each misses by least; of duplicates the ordinal of the clip that
            stands for each; -1 if there is none.
        other_note: Details of the reason, or null.
        alias_ordinal, alias_key: Ordinals and keys of the clips whose key is not their uid.
    """

    about: About
    ordinal: I64
    copy: I64
    repeat_index: I32
    plan_step: I64
    column: I64
    bucket: I64
    size: I64
    other_ordinal: I64
    other_copy: I64
    other_reason: I32
    other_nearest: I32
    other_note: Any
    labels: list[str]
    alias_ordinal: I64
    alias_key: U64

    @property
    def is_first_use(self) -> Mask:
        """True for the first use of a clip, which consumes it; False for repeats and padding."""
        return np.asarray(self.repeat_index == 0)

    @property
    def consumed(self) -> Mask:
        """True for the clips that are not planned because an earlier segment of the epoch consumed them."""
        return np.isin(self.other_reason, [i for i, label in enumerate(self.labels) if label == CONSUMED])

    def step_of_place(self) -> I64:
        """Return the step of each planned clip."""
        return np.repeat(self.plan_step, self.size)

    def before(self, plan_step: int) -> tuple[I64, I64]:
        """Return ordinals and copies of the clips that the steps before `plan_step` consume."""
        done = int(self.size[: np.searchsorted(self.plan_step, plan_step)].sum())
        first = self.is_first_use[:done]
        return self.ordinal[:done][first], self.copy[:done][first]


def path(run: RunFolder, key: Key) -> Path:
    """Return the folder of a segment's record."""
    return run.coverage_folder / "segment-{:03d}-{:06d}-{:03d}".format(*key)


def keys(run: RunFolder) -> list[Key]:
    """Return the keys of the segments that have a record, oldest first."""
    matches = [_NAME.fullmatch(p.name) for p in run.coverage_folder.glob("segment-*")]
    return sorted((int(m[1]), int(m[2]), int(m[3])) for m in matches if m)


def write(run: RunFolder, record: Record) -> None:
    """Commit a record, replacing a former one of the same segment.

    Raises:
        OSError: The record could not be written; a former one may be lost then.
    """
    target = path(run, record.about.key)
    unfinished = target.with_name(f".{target.name}.tmp")
    storage.mkdirs(target.parent)
    if unfinished.exists():
        storage.rmtree(unfinished)
    storage.mkdir(unfinished)
    names = [name for name in _NUMBERS if name != ALIASES or len(record.alias_ordinal)]
    sums = {name: _write_table(unfinished / name, record) for name in names}
    _write_values(unfinished / _ABOUT, record.about.model_copy(update={"files": sums}))
    if target.exists():
        storage.rmtree(target)
    storage.rename(unfinished, target)
    storage.fsync_folder(target.parent)


def _write_table(file: Path, record: Record) -> str:
    """Write a file of a record, and return its checksum."""
    names, encodings, prefix = _NUMBERS[file.name]
    columns = {name: _small(getattr(record, prefix + name)) for name in names}
    if file.name == _OTHERS:
        reason = pa.array(record.other_reason, type=pa.int32())
        columns["reason"] = pa.DictionaryArray.from_arrays(reason, pa.array(record.labels))
        columns["note"] = record.other_note
    checksums: list[str] = []
    with storage.create(file, on_close=lambda _, checksum: checksums.append(checksum)) as f:
        pq.write_table(
            pa.table(columns),
            f,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in columns if name not in encodings],
            column_encoding=encodings,
            write_statistics=False,
        )
    return checksums[0]


def _small(numbers: NDArray[Any]) -> Any:
    """Return numbers as int32 if they fit."""
    return pa.array(numbers.astype(np.int32) if numbers.max(initial=0) < 2**31 else numbers)


def read_about(run: RunFolder, key: Key) -> About:
    """Read a record's metadata.

    Raises:
        RecordError: There is no record, or it is damaged.
    """
    folder = path(run, key)
    try:
        about = _read_values(folder / _ABOUT, About)
    except FileNotFoundError:
        raise RecordError(f"{folder.name} does not exist") from None
    if about.format > FORMAT_VERSION or about.key != key:
        raise RecordError(f"{folder.name} has a newer format or belongs to another segment")
    return about


def read(run: RunFolder, key: Key, plan: str | None = None) -> Record:
    """Read a record and verify it, also against the digest of the segment's plan if that is given.

    Raises:
        RecordError: There is no record, it is damaged, or it belongs to another plan.
    """
    about, folder = read_about(run, key), path(run, key)
    if plan is not None and about.plan != plan:
        raise RecordError(f"{folder.name} belongs to another plan")
    tables = {name: _read_table(folder, name, about) for name in _NUMBERS if name != ALIASES or name in about.files}
    columns: dict[str, NDArray[Any]] = {}
    for file, (names, _, prefix) in _NUMBERS.items():
        for name in names:
            numbers = tables[file].column(name).to_numpy() if file in tables else np.zeros(0)
            columns[prefix + name] = numbers.astype(_TYPES.get(prefix + name, np.int64), copy=False)
    reason = tables[_OTHERS].column("reason").combine_chunks()
    return Record(
        about=about,
        **columns,
        other_reason=np.asarray(reason.indices, dtype=np.int32),
        other_note=tables[_OTHERS].column("note"),
        labels=reason.dictionary.to_pylist(),
    )


def _read_table(folder: Path, name: str, about: About) -> Any:
    try:
        if digests.of_file(folder / name) != about.files[name]:
            raise RecordError(f"{folder.name}/{name} is damaged: its checksum is not the one that was stored")
        return pq.read_table(folder / name)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise RecordError(f"{folder.name}/{name} cannot be read: {error}") from error


def write_outcome(run: RunFolder, key: Key, outcome: Outcome) -> None:
    """Record how a segment ended, if the segment has a record.

    Raises:
        OSError: The outcome could not be written.
    """
    if path(run, key).is_dir():
        _write_values(path(run, key) / _OUTCOME, outcome)


def _write_values(file: Path, values: Config) -> None:
    plain = values.model_dump(mode="json")
    files.write_json(file, {"checksum": digests.digest_json(plain), **plain})


def _read_values(file: Path, kind: type[_Values]) -> _Values:
    """Read values and verify their checksum; raises FileNotFoundError if there are none."""
    name = f"{file.parent.name}/{file.name}"
    try:
        plain = user_files.parse_json(user_files.read_text(file, user_files.TABLE))
        if plain.pop("checksum") != digests.digest_json(plain):
            raise RecordError(f"{name} is damaged: its checksum is not the one that was stored")
        return kind.model_validate(plain)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise RecordError(f"{name} cannot be read: {error}") from error


def read_outcome(run: RunFolder, key: Key) -> Outcome | None:
    """Read how a segment ended; None if that is not recorded.

    Raises:
        RecordError: The outcome is damaged.
    """
    with suppress(FileNotFoundError):
        return _read_values(path(run, key) / _OUTCOME, Outcome)
    return None


def reopen(run: RunFolder, step: int, key: Key | None) -> None:
    """Remove the outcomes of segments that end after the step to which the run goes back.

    That of the segment `key`, with which training continues, is removed too.
    """
    for other in reversed(keys(run)):
        try:
            outcome, first = read_outcome(run, other), read_about(run, other).first_step
        except RecordError:
            outcome, first = None, step
        if other == key or outcome is None or first + outcome.steps > step:
            (path(run, other) / _OUTCOME).unlink(missing_ok=True)
        elif key is None or other < key:
            return


def drop(run: RunFolder, key: Key) -> None:
    """Remove a record."""
    storage.rmtree_if_possible(path(run, key))


def drop_catalogs(run: RunFolder) -> None:
    """Remove the copies of catalogs that no record needs; none as long as a record cannot be read, which may need any."""
    copies = [*run.coverage_folder.glob("catalog-*")]
    with suppress(RecordError):
        needed = {read_about(run, key).catalog for key in (keys(run) if len(copies) > 1 else ())}
        for copy in copies if needed else ():
            if copy.name not in needed:
                storage.rmtree_if_possible(copy)


def size_bytes(run: RunFolder, key: Key) -> int:
    """Return the size of a record on disk in bytes."""
    return sum(file.stat().st_size for file in path(run, key).glob("*"))


def prune(
    run: RunFolder,
    max_bytes: int,
    in_use: Collection[tuple[int, int]],
    totals: Callable[[tuple[int, int]], dict[str, Any]],
) -> Iterator[tuple[int, int]]:
    """Remove the records of the oldest epochs until the others fit into `max_bytes`, and store their totals.

    Epochs are (data_restarts, epoch); the removed ones are yielded, and those `in_use` stay.
    """
    sizes = Counter[tuple[int, int]]()
    for key in keys(run):
        sizes[key[:2]] += size_bytes(run, key)
    over = sizes.total() - max_bytes
    for epoch in sorted(sizes.keys() - {*in_use}):
        if over <= 0:
            return
        line = {"time": time.time(), "data_restarts": epoch[0], "epoch": epoch[1], **totals(epoch)}
        gone = [key for key in keys(run) if key[:2] == epoch]
        line["records"] = [_written(run, key) for key in gone]
        files.append_json_line(run.coverage_folder / _TOTALS, line)
        for key in gone:
            storage.rmtree(path(run, key))
        over -= sizes[epoch]
        yield epoch


def pruned(run: RunFolder) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the totals of epochs whose records `prune` removed, except epochs that were trained again since."""
    totals = {(one["data_restarts"], one["epoch"]): one for one in files.read_json_lines(run.coverage_folder / _TOTALS)}
    for key in keys(run) if totals else ():
        # A kill may have left some of those that are gone; a later record may be of a clock that is behind.
        written = _written(run, key)
        if written is not None and key[:2] in totals and written not in totals[key[:2]].get("records", ()):
            del totals[key[:2]]
    return totals


def _written(run: RunFolder, key: Key) -> float | None:
    """Return the time of a record, which tells it from others of its segment; None if that cannot be read."""
    with suppress(RecordError):
        return read_about(run, key).time
    return None
