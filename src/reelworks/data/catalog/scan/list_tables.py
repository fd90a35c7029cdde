"""Read lists of clips as people and programs write them, into a table with a column `path`.

CSV and TSV (`csv_lists`), JSON lines and JSON (`json_lists`), Parquet and folders of it, also packed by gzip; in UTF-8, UTF-16,
and older encodings where these are sure. `list_columns` finds the columns of paths and captions. What is clear is read, and what
could be read in two ways is refused with the place and a remedy.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from reelworks.core import retry, text_encoding, user_files
from reelworks.core.errors import UserError
from reelworks.data.catalog.scan import archive, csv_lists, json_lists, list_columns, remote
from reelworks.data.catalog.scan.list_columns import ListColumns
from reelworks.data.media import location, storages
from reelworks.data.media.formats import list_suffix
from reelworks.data.media.location import MediaPath

_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_BLOCK_BYTES = 1 << 22
_MOST_BY_CHANCE = 3  # signs of a text in GBK that is UTF-8 too


def read(file: MediaPath) -> ListColumns:
    """Read a list.

    Raises:
        UserError: It is missing, damaged, or can be read in several ways.
    """
    try:
        table, is_plain, notes = retry.with_retries(lambda: _parsed(file))
        columns = list_columns.read(table)
    except list_columns.FilesInsideError as error:
        raise UserError(
            str(error),
            code="list-holds-files",
            field="dataset.path",
            value=str(file),
            remedy=f"write them to a folder, with a list of them: reelworks unpack {file} -o FOLDER",
        ) from error
    except (OSError, EOFError, zlib.error, ValueError, pa.ArrowException) as error:
        missing = isinstance(error, FileNotFoundError)
        raise UserError(
            "the list does not exist" if missing else f"the list cannot be read: {error}",
            code="list-unreadable",
            field="dataset.path",
            value=str(file),
            remedy="see what its storage says, and give the list when it does"
            if storages.is_of_storage(error)
            else "give a CSV file with a header and quotes around texts with commas, Parquet or JSON lines, in UTF-8",
        ) from error
    return columns._replace(notes=(*notes, *columns.notes), is_plain=is_plain)


def texts(file: MediaPath) -> Any:
    """Return a list that was read before as a table, of which CSV has all columns as the texts that stand there."""
    return _parsed(file, as_texts=True)[0]


def _parsed(file: MediaPath, *, as_texts: bool = False) -> tuple[Any, bool, tuple[str, ...]]:
    with location.local(remote.current(file)) as here:
        path, suffix = Path(str(here)), list_suffix(file.name)
        if suffix == ".parquet":
            return _parquet(path), True, ()
        user_files.require(path, user_files.LIST)
        content, notes = _content(path)

        def opened() -> Any:
            return user_files.opened(path) if content is None else io.BytesIO(content)

        if suffix in (".csv", ".tsv"):
            table, is_plain = csv_lists.read(opened, "\t" if suffix == ".tsv" else ",", as_texts=as_texts)
        else:
            table, is_plain = json_lists.read(opened, is_lines=suffix != ".json")
    return table, is_plain and content is None, notes


def _parquet(path: Path) -> Any:
    """Read a Parquet file, or all parts in a folder, which need not have the same columns."""
    parts = sorted(path.rglob("[!._]*.parquet")) if path.is_dir() else [path]
    if not parts:
        raise ValueError("the folder contains no Parquet files")
    first, *further = map(_parquet_part, parts)
    return pa.concat_tables([first, *further], promote_options="permissive") if further else first


def _parquet_part(path: Path) -> Any:
    """Read one file, of which two columns may have one name; words of a dictionary are read as texts, as they are in others."""
    user_files.require(path, user_files.LIST)
    with pa.parquet.ParquetFile(path) as file:
        for rows in file.iter_batches(batch_size=1):
            list_columns.read(
                pa.Table.from_batches([rows])
            )  # refuses files themselves before all of them are in memory
            break
        table = file.read()
    columns = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, names=table.column_names)


def _content(path: Path) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the content of a list as UTF-8, and what is to be told of it; None for a file that is UTF-8 as it is.

    Whether it is packed, its content tells: some web servers send what is called `.csv.gz` unpacked, and others a `.csv` packed.
    """
    if _is_utf8(path):
        return None, ()
    with user_files.opened(path) as file, gzip.open(file) if file.peek(2)[:2] == _GZIP else file as opened:
        data = user_files.read_open(opened, path, user_files.LIST)
    if data.startswith(_PARQUET):
        raise ValueError("it is Parquet: give it a name that ends in .parquet")
    if data.startswith(archive.COMPRESSED):
        raise ValueError("it is packed, and not once by gzip: unpack it")
    text, encoding = _decoded(data)
    return text.encode(), (f"it is read as {encoding}",) if encoding else ()


def _is_utf8(path: Path) -> bool:
    with suppress(UnicodeDecodeError), user_files.opened(path) as file:
        texts = codecs.iterdecode(iter(partial(file.read, _BLOCK_BYTES), b""), "utf-8")
        return not any("\0" in text for text in texts)
    return False


def _decoded(data: bytes) -> tuple[str, str]:
    """Return the text of a list, and the name of its encoding if that had to be found.

    Raises:
        ValueError: It is not sure, or lines have different ones.
    """
    if (text := text_encoding.decoded(data)) is not None:
        return text, ""
    if b"\0" in data:
        text, names = (settled := text_encoding.settle([data])).texts[0], settled.encodings
        if text is not None:
            return text, next(iter(names))
    lines = [line for line in data.split(b"\n") if not line.isascii()]
    other = [line for line in lines if text_encoding.decoded(line) is None]
    encoding = text_encoding.find(other)
    if encoding is None or None in text_encoding.settle(other).texts:
        raise ValueError("it is not UTF-8, and its encoding is not sure: save it as UTF-8")
    text = data.decode(encoding.codec)
    has_pairs = len(text) < len(data)
    if any(
        not has_pairs or sum(not sign.isascii() for sign in line.decode()) > _MOST_BY_CHANCE
        for line in set(lines) - set(other)
    ):
        raise ValueError(f"some lines are UTF-8, and others {encoding.name}: save it all as UTF-8")
    return text, encoding.name
