from __future__ import annotations

from pathlib import Path

import pytest

from reelworks.catalog import listing


@pytest.mark.parametrize(
    ("content", "caption"),
    [
        (b"a cat\n", "a cat"),
        ("\ufeffein Kätzchen".encode(), "ein Kätzchen"),
        (b"caf\xe9 au lait", "caf\ufffd au lait"),
        (b"\xff\xfe" + "ein Kätzchen\r\n".encode("utf-16-le"), "ein Kätzchen"),
        (b"\xfe\xff" + "ein Kätzchen".encode("utf-16-be"), "ein Kätzchen"),
        (b" \r\n\t", ""),
        (b"", ""),
        (b"two\nlines", "two\nlines"),
    ],
)
def test_read(tmp_path: Path, content: bytes, caption: str) -> None:
    (tmp_path / "a.b.txt").write_bytes(content)
    assert listing.read(tmp_path / "a.b.mp4") == caption


def test_no_file_is_not_an_empty_one(tmp_path: Path) -> None:
    assert listing.read(tmp_path / "a.mp4") is None


def test_an_unreadable_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(OSError, match="directory"):
        listing.read(tmp_path / "a.mp4")
