"""Write the files that columns of Parquet hold, as datasets of the hub have them, to folders with a list of each."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from fsspec.implementations.local import LocalFileSystem

from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.data.catalog.scan.list_columns import PATH
from reelworks.data.media import formats, pictures, storages

LIST = "list.parquet"
_ROWS = 16  # at a time: their files are in memory


@dataclass(frozen=True)
class Unpacked:
    """The files of a column, written to a folder.

    Attributes:
        list: The list of its files, with the columns that hold none, as those of captions.
        files: Number of files.
        empty: Number of rows without a file, which are not in the list.
    """

    list: Path
    files: int
    empty: int


def unpack(source: str, output: Path, on_progress: Callable[[int, int], None]) -> list[Unpacked]:
    """Write the files of a Parquet file, or of all below a folder, as `output/COLUMN/PART/ROW.jpg` and the like.

    Those that are there with their size are kept, so that the same call goes on where one was broken off.

    Args:
        source: Path or address of the file or folder.
        output: Folder of the columns' folders.
        on_progress: Called with the rows that are done, and all.

    Raises:
        UserError: There is no such Parquet, it is damaged or holds no files, or the folder cannot be written.
    """
    files.sweep_below(output)
    listed, done = dict[str, list[Any]](), 0
    try:
        fs, root = _filesystem(source)
        names = sorted(name for name in fs.find(root) if formats.extension_of(name) == ".parquet")
        total = sum(_metadata(fs, name).num_rows for name in names)
        for name in names:
            part = posixpath.basename(name) if name == root else posixpath.relpath(name, root)
            for first, rows in _batches(fs, name):
                columns = [field.name for field in rows.schema if _holds_files(field.type)]
                others = rows.drop({*columns, PATH} & {*rows.column_names})
                for column in columns:
                    paths = _write(rows[column], _folder(output, column), posixpath.splitext(part)[0], first)
                    listed.setdefault(column, []).append(others.add_column(0, PATH, pa.array(paths, pa.string())))
                on_progress(done := done + len(rows), total)
    except UserError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _refusal(source, f"it cannot be read: {error}") from error
    if not listed:
        raise _refusal(source, "no column of Parquet files in it holds files")
    if all(part[PATH].null_count == len(part) for parts in listed.values() for part in parts):
        named = "if its rows name files that are here, it is itself a list, for the path of a dataset"
        raise _refusal(source, f"no row of {', '.join(listed)} has the bytes of a file: {named}")
    return [_listed(_folder(output, column), parts) for column, parts in listed.items()]


def _filesystem(source: str) -> tuple[Any, str]:
    if storages.is_url(source):
        return storages.filesystem(source)
    return LocalFileSystem(), str(Path(source).resolve())


def _metadata(fs: Any, name: str) -> Any:
    with fs.open(name) as file:
        return pa.parquet.read_metadata(file)


def _batches(fs: Any, name: str) -> Iterator[tuple[int, Any]]:
    """Yield some rows of a file at a time, with the number of the first."""
    first = 0
    with fs.open(name) as file:
        for batch in pa.parquet.ParquetFile(file).iter_batches(batch_size=_ROWS):
            yield first, pa.Table.from_batches([batch])
            first += len(batch)


def _holds_files(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _folder(output: Path, column: str) -> Path:
    return output / re.sub(r"[^\w-]", "_", column)


def _write(column: Any, folder: Path, part: str, first: int) -> list[str | None]:
    """Write the files of rows, and return their paths below the folder, None for rows without one."""
    paths = list[str | None]()
    for row, value in enumerate(column.to_pylist(), first):
        data, name = (value["bytes"], value.get("path")) if isinstance(value, dict) else (value, None)
        if not data:
            paths.append(None)
            continue
        suffix = formats.extension_of(name or "")
        path = f"{part}/{row:08}{suffix if formats.kind_of(f'0{suffix}') else _suffix(data)}"
        paths.append(path)
        file = folder / path
        with files.writing("--output", file):
            if not file.exists() or file.stat().st_size != len(data):
                file.parent.mkdir(parents=True, exist_ok=True)
                with files.replacing(file) as temporary:
                    temporary.write_bytes(data)
    return paths


def _suffix(data: bytes) -> str:
    """Return the suffix of a picture's kind; ".mp4" for what is none, since videos are known by their content."""
    try:
        return f".{str(pictures.picture(io.BytesIO(data)).format).lower()}"
    except formats.ProbeError:
        return ".mp4"


def _listed(folder: Path, parts: list[Any]) -> Unpacked:
    """Write the list of a column's files."""
    table = pa.concat_tables(parts, promote_options="permissive")
    there = table.filter(table[PATH].is_valid())
    sink = io.BytesIO()
    pa.parquet.write_table(there, sink)
    files.write_for("--output", folder / LIST, sink.getvalue())
    return Unpacked(folder / LIST, len(there), len(table) - len(there))


def _refusal(source: str, problem: str) -> UserError:
    return UserError(
        problem,
        code="nothing-to-unpack",
        field="SOURCE",
        value=source,
        remedy="give a Parquet file, or a folder of them, with a column of the bytes of pictures or videos",
    )
