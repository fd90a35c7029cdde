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
    with pytest.raises(OSError, match=r"its caption a\.txt: not a regular file, but a folder"):
        listing.read(tmp_path / "a.mp4")


def written(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name.replace('_', '.')}.txt").write_text(text)
    return folder


@pytest.mark.parametrize(("names", "caption"), [(["a.caption"], "a.caption"), (["a.txt", "a.caption"], "a.txt")])
def test_other_trainers_suffix_is_read_where_there_is_no_txt(tmp_path: Path, names: list[str], caption: str) -> None:
    for name in names:
        (tmp_path / name).write_text(name)
    (tmp_path / "a.mp4").touch()
    (entry,) = listing.list_folder("x", tmp_path).entries
    assert entry.captioned == 1
    assert listing.read(tmp_path / "a.mp4", entry.captioned) == caption


@pytest.mark.parametrize(
    ("texts", "caption"),
    [
        ({"a": "one", "a_1": "two", "a_2": "three"}, "one\ntwo\nthree"),
        ({"a": "of two\nlines", "a_1": " and\tmore "}, "of two lines\nand more"),
        ({"a_1": "no first", "a_2": "file"}, "no first\nfile"),
        ({"a": "one", "a_1": "", "a_3": "after a gap"}, "one"),
        ({"a": "", "a_1": ""}, ""),
        ({"a": "its own\ntwo lines"}, "its own\ntwo lines"),
        ({}, None),
    ],
)
def test_files_with_a_number_are_captions_too(tmp_path: Path, texts: dict[str, str], caption: str | None) -> None:
    """As a line each; a scan reads what the listing counted."""
    (written(tmp_path, **texts) / "a.mp4").touch()
    (entry,) = listing.list_folder("x", tmp_path).entries
    found = listing.read(tmp_path / "a.mp4", entry.captioned) if entry.captioned else None
    assert found == caption


def test_a_number_may_belong_to_the_name_of_another_clip(tmp_path: Path) -> None:
    """The caption of a.1.MP4 is not one of a.mp4."""
    written(tmp_path, a="one", a_1="of the other", a_2="not reached")
    for name in ("a.mp4", "a.1.MP4"):
        (tmp_path / name).touch()
    counts = {entry.path: entry.captioned for entry in listing.list_folder("x", tmp_path).entries}
    assert counts == {"a.mp4": 1, "a.1.MP4": 1}
    assert listing.read(tmp_path / "a.1.MP4", counts["a.1.MP4"]) == "of the other"
