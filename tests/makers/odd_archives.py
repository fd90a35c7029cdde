"""Archives whose headers state what nobody would write, and the rows that a catalog has of a folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store.store import Catalog

_HUGE = 8 << 30


def picture(path: Path) -> Path:
    """Write a small picture."""
    Image.new("RGB", (32, 32), (90, 20, 40)).save(path)
    return path


def scanned(folder: Path | str, catalog: Path) -> dict[str, Any]:
    """Scan a folder or list, and return the rows by path as the catalog has them when it is opened again."""
    source = DatasetConfig(path=str(folder), name="d").place
    scan_sources([source], catalog, workers=1)
    return {row["path"]: row for row in Catalog.open(catalog).live().to_table().to_pylist()}


def _member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def png() -> bytes:
    """Return the file of a small picture."""
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, "png")
    return buffer.getvalue()


def write_tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """Write an archive of members whose headers may state anything."""
    with path.open("wb") as file:
        for info, data in members:
            file.write(info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512))
        file.write(bytes(1024))
    return path


def odd_members() -> dict[str, list[tuple[tarfile.TarInfo, bytes]]]:
    """Members of archives that are odd, beside a good one."""
    small, good = png(), _member("good.png", png())
    return {
        "a name twice": [good, _member("a.png", small[:40]), _member("a.png", small)],
        "a name in two spellings": [good, _member("./a.png", small[:40]), _member("x/../a.png", small)],
        "a caption twice": [good, _member("good.txt", b"old"), _member("good.txt", b"new")],
        "a negative size": [good, _member("a.png", size=-5)],
        "a very negative size": [good, _member("a.png", size=-(2**40))],
        "a size of pax": [good, _member("a.png", small, pax_headers={"size": "-512"})],
        "a size that is no number": [good, _member("a.png", small, pax_headers={"size": "many"})],
        "a huge size": [good, _member("a.png", size=2**62)],
        "a huge caption": [good, _member("good.txt", size=_HUGE)],
        "a huge pax header": [good, _member("a.png", size=_HUGE, type=tarfile.XHDTYPE)],
        "a negative pax header": [good, _member("a.png", size=-1024, type=tarfile.XHDTYPE)],
        "a huge long name": [good, _member("a.png", size=_HUGE, type=tarfile.GNUTYPE_LONGNAME)],
        "a sparse one": [good, _member("a.png", size=_HUGE, type=tarfile.GNUTYPE_SPARSE)],
        "a sparse one of pax": [
            good,
            _member(
                "a.png",
                small,
                pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "-7"},
            ),
        ],
        "links": [
            good,
            _member("a.png", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
            _member("b.png", type=tarfile.LNKTYPE, linkname="good.png"),
            _member("c.png", type=tarfile.FIFOTYPE),
            _member("good.txt", type=tarfile.SYMTYPE, linkname="/dev/zero"),
        ],
        "names outside": [
            good,
            _member("..", small),
            _member("../../a.png", small),
            _member("/b.png", small),
            _member("a/../..", small),
            _member(".", small),
            _member("", small),
        ],
        "a NUL in a name": [good, _member("a.png", small, pax_headers={"path": "b\0.png"})],
        "a name that is not UTF-8": [good, _member("a\udcff.png", small), _member("a\\xff.png", small)],
        "half of a letter in a caption": [good, _member("good.json", b'{"caption": "a \\ud800 b"}')],
        "a caption that is nested": [good, _member("good.json", b"[" * 200_000)],
        "a time that is not one": [good, _member("a.png", small, pax_headers={"mtime": "nan"})],
    }
