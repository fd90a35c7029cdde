"""Which files are captions of a clip, and what a scan makes of them."""

from __future__ import annotations

from pathlib import Path

import media_makers as media
import pyarrow as pa
import pytest

from reelworks.data.catalog.config import DatasetConfig, Source
from reelworks.data.catalog.query import captions
from reelworks.data.catalog.scan import caption_names, caption_texts, list_columns, listing
from reelworks.data.catalog.scan.caption_names import CaptionNames
from reelworks.data.catalog.scan.scan import ScanResult, scan_sources
from reelworks.data.catalog.store.store import Catalog

# Signs of no width, of directions and variants, of tags, soft hyphens, and blank letters.
UNSEEN = (
    *("\u00a0\u3000", "\u200b\u200c\ufeff", "\u2060", "\u200e\u200f", "\u202e", "\ufe0f", "\u0301", "\u00ad"),
    *("\u2800", "\u3164", "\u115f", "\u1160", "\uffa0", "\U000e0020\U000e0041", "\ufffd", "\u200b\x01"),
)


@pytest.mark.parametrize(
    ("content", "caption"),
    [
        (b"a cat\n", "a cat"),
        ("\ufeffein Kätzchen".encode(), "ein Kätzchen"),
        (b"caf\xe9 au lait", None),
        (b"\xff\xfe" + "ein Kätzchen\r\n".encode("utf-16-le"), "ein Kätzchen"),
        (b"\xfe\xff" + "ein Kätzchen".encode("utf-16-be"), "ein Kätzchen"),
        ("ein Kätzchen".encode("utf-16-le"), "ein Kätzchen"),
        ("一只橘猫在草地上奔跑".encode("gbk"), "一只橘猫在草地上奔跑"),
        (b"\0\0\0\0", None),
        (b"a cat\0", "a cat"),
        ("a \ufffdcat".encode(), "a cat"),
        ("a \ufffd\ufffd cat".encode(), None),
        *((sign.encode(), "") for sign in UNSEEN),
        (b"nan\n", None),
        (b"None", None),
        (b" \r\n\t", ""),
        (b"", ""),
        (b"two\nlines", "two\nlines"),
    ],
)
def test_a_file_alone(tmp_path: Path, content: bytes, caption: str | None) -> None:
    (tmp_path / "a.b.txt").write_bytes(content)
    assert caption_texts.beside(tmp_path / "a.b.mp4") == caption


def test_no_file_is_not_an_empty_one(tmp_path: Path) -> None:
    assert caption_texts.beside(tmp_path / "a.mp4") is None


def test_an_unreadable_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(OSError, match=r"its caption a\.txt: not a regular file, but a folder"):
        caption_texts.beside(tmp_path / "a.mp4")


def test_a_file_that_was_written_a_moment_ago_is_seen(tmp_path: Path) -> None:
    assert caption_texts.beside(tmp_path / "a.mp4") is None
    (tmp_path / "a.txt").write_text("a cat", encoding="utf-8")
    assert caption_texts.beside(tmp_path / "a.mp4") == "a cat"


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(
    ("clip", "names", "read", "rivals"),
    [
        ("a.mp4", "a.txt", "a.txt", ""),
        ("a.mp4", "a.caption", "a.caption", ""),
        ("a.mp4", "a.TXT", "a.TXT", ""),
        ("a.MP4", "a.Txt", "a.Txt", ""),
        ("a.mp4", "a.CAPTION", "a.CAPTION", ""),
        ("a.mp4", "a.mp4.txt", "a.mp4.txt", ""),
        ("a.mp4", "a.mp4.Caption", "a.mp4.Caption", ""),
        ("a.mp4", "a.txt a.caption", "a.txt", "a.caption"),
        ("a.mp4", "a.TXT a.caption", "a.TXT", "a.caption"),
        ("a.mp4", "a.TXT a.txt", "a.txt", "a.TXT"),
        ("a.mp4", "a.txt a.mp4.txt", "a.txt", "a.mp4.txt"),
        ("a.mp4", "a.caption a.mp4.txt", "a.caption", "a.mp4.txt"),
        ("a.mp4", "a.mp4.png a.mp4.txt", "", ""),
        ("a.mp4.png", "a.mp4 a.mp4.txt", "a.mp4.txt", ""),
        ("a.mp4", "a.txt a.1.txt a.2.TXT", "a.txt a.1.txt a.2.TXT", ""),
        ("a.mp4", "a.1.txt a.2.txt a.4.txt", "a.1.txt a.2.txt", ""),
        ("a.mp4", "a.txt a.1.txt a.1.MP4 a.2.txt", "a.txt", ""),
        ("a.1.MP4", "a.txt a.1.txt a.mp4", "a.1.txt", ""),
        ("a.mp4", "a.1.txt a.1.webp", "", ""),
        ("a.mp4", "a.txt a.1.txt a.1.jxl", "a.txt", ""),
        ("a.mp4", "a.txt a.1.txt a.1.MP3", "a.txt", ""),
        ("a.mp4", "a.txt a.1.txt a.1.mp4.part a.2.txt", "a.txt", ""),
        ("a.mp4", "a.txt a.1.txt a.1.PNG.bak", "a.txt", ""),
        ("a.mp4", "a.txt a.1.txt a.1.json a.1.npy", "a.txt a.1.txt", ""),
        ("a.png", "a.png.jxl a.png.txt", "", ""),
        ("a.png", "a.png.json a.png.txt", "a.png.txt", ""),
        ("a.png", "a.json a.png.txt", "a.png.txt", ""),
        ("a.png", "a.json a.caption", "a.caption", ""),
        ("a.png", "a.json a.png.json", "a.json", ""),
        (f"{COMPOSED}.mp4", f"{DECOMPOSED}.wav {DECOMPOSED}.txt", f"{DECOMPOSED}.txt", ""),
        ("a.mp4", "a.1.caption", "", ""),
        ("clip-1.0.mp4", "clip-1.5.txt clip-1.txt clip.txt", "", ""),
        ("a.b.mp4", "a.txt a.b.txt", "a.b.txt", ""),
        ("a.mp4", "b.txt b.json a.txt.bak", "", ""),
        ("a.mp4", "b.txt a.json a.txt.bak", "a.json", ""),
        ("a.mp4", "A.txt", "", ""),
        (f"{COMPOSED}.png", f"{DECOMPOSED}.txt", f"{DECOMPOSED}.txt", ""),
        (f"{DECOMPOSED}.png", f"{COMPOSED}.txt", f"{COMPOSED}.txt", ""),
        (f"{DECOMPOSED}.png", f"{COMPOSED}.txt {DECOMPOSED}.txt", f"{DECOMPOSED}.txt", ""),
        (f"{DECOMPOSED}.png", f"{COMPOSED}.txt {COMPOSED}.png", "", ""),
        (f"{DECOMPOSED}.png", f"{COMPOSED}.png.txt {COMPOSED}.1.txt", f"{COMPOSED}.png.txt {COMPOSED}.1.txt", ""),
    ],
)
def test_names(clip: str, names: str, read: str, rivals: str) -> None:
    """A clip has the captions of its own name, and none that are another clip's."""
    assert CaptionNames([clip, *names.split()]).find(clip) == (read.split(), rivals.split())


@pytest.mark.parametrize(
    "names", ["x.txt", "x.TXT", "x.mp4.txt", f"{COMPOSED}.txt", "x.txt x.1.txt", "x.caption x.txt", ""]
)
def test_a_folder_is_read_as_it_is_named(tmp_path: Path, names: str) -> None:
    clip = tmp_path / (f"{DECOMPOSED}.mp4" if COMPOSED in names else "x.mp4")
    clip.touch()
    for name in names.split():
        (tmp_path / name).write_text(name, encoding="utf-8")
    (entry,) = listing.list_folder("x", tmp_path).entries
    assert entry.captions == caption_texts.files_beside(clip)
    found = [name for name in names.split() if name != "x.caption"]
    assert caption_texts.beside(clip) == ("\n".join(found) if found else None)


@pytest.mark.parametrize(
    ("texts", "caption"),
    [
        ({"a": "one", "a.1": "two", "a.2": "three"}, "one\ntwo\nthree"),
        ({"a": "of two\nlines", "a.1": " and\tmore "}, "of two lines\nand more"),
        ({"a.1": "no first", "a.2": "file"}, "no first\nfile"),
        ({"a": "one", "a.1": "", "a.3": "after a gap"}, "one"),
        ({"a": "one", "a.1": "nan"}, "one"),
        ({"a": "one", "a.1": "\0"}, "one"),
        ({"a": "", "a.1": ""}, ""),
        ({"a": "its own\ntwo lines"}, "its own\ntwo lines"),
        ({}, None),
    ],
)
def test_files_with_a_number_are_captions_too(tmp_path: Path, texts: dict[str, str], caption: str | None) -> None:
    """As a line each."""
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    assert caption_texts.beside(tmp_path / "a.mp4") == caption


def scanned(folder: Path, contents: dict[str, bytes]) -> tuple[ScanResult, dict[str, str | None], ScanResult]:
    """Write captions and their pictures; return the scan, the captions by name, and a second scan."""
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        if not (picture := folder / f"{name.partition('.')[0]}.png").exists():
            media.write_picture(picture)
    source = Source("d", folder)
    result = scan_sources([source], folder.with_name("catalog"), workers=1)
    rows = Catalog.open(folder.with_name("catalog")).live()
    captions = dict(zip((p.removesuffix(".png") for p in rows.path.to_pylist()), rows.caption.to_pylist(), strict=True))
    return result, captions, scan_sources([source], folder.with_name("catalog"), workers=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


SHORT = {"a": "猫", "b": "一只猫坐着", "c": "阳光明媚的草地", "d": "镜头缓慢推进"}


def test_short_texts_tell_their_encoding_together(folder: Path) -> None:
    """Said once; and the next scan finds nothing changed."""
    contents = {f"{name}.txt": text.encode("gbk") for name, text in SHORT.items()}
    result, captions, again = scanned(folder, {**contents, "e.txt": b"in ASCII", "f.txt": "in UTF-8: 猫".encode()})
    assert captions == {**SHORT, "e": "in ASCII", "f": "in UTF-8: 猫"}
    assert result.notes == again.notes == (f"{folder}: 4 captions are in GBK, and read so",)
    assert (again.unchanged, again.changed, again.version) == (6, 0, result.version)


def test_what_is_not_sure_is_no_caption(folder: Path) -> None:
    result, captions, again = scanned(
        folder, {"a.txt": b"caf\xe9", "b.txt": b"\0" * 9, "c.txt": "ein Kätzchen".encode()[:6], "d.txt": b"a dog"}
    )
    assert captions == {"a": None, "b": None, "c": None, "d": "a dog"}
    assert len(result.notes) == 1
    assert "3 captions are no text in UTF-8" in result.notes[0]
    assert "the first is a.txt" in result.notes[0]
    assert "iconv" in result.notes[0]
    assert again.unchanged == 4


def test_words_for_nothing_and_second_captions_are_said(folder: Path) -> None:
    contents = {
        "a.txt": b"nan",
        "b.txt": b"none is as good",
        "c.txt": b"a cat",
        "c.caption": b"a cat",
        "c.png.txt": b"a dog",
        "d.txt": b"a fox",
    }
    result, captions, again = scanned(folder, {**contents, "d.caption": b" a fox\n"})
    assert captions == {"a": None, "b": "none is as good", "c": "a cat", "d": "a fox"}
    assert [note.partition(": ")[2].partition(";")[0] for note in result.notes] == [
        "1 clip has a second caption file with another text, which is not read",
        "1 clip has a caption that says only nan, None or another such word, and is not used",
    ]
    assert again.unchanged == 4


def test_an_empty_caption_hides_no_other_that_is_clear(folder: Path) -> None:
    """It is told, since somebody may have emptied the file so that the clip has no caption."""
    contents = {"a.txt": b" \n", "a.caption": b"a cat", "b.txt": b"a dog", "b.caption": b""}
    contents |= {"c.txt": b"", "c.png.txt": b"a fox", "d.txt": b"", "d.caption": b"an owl", "d.png.txt": b"a hen"}
    result, captions, again = scanned(folder, contents)
    assert [captions[name] for name in "abcd"] == ["a cat", "a dog", "", ""]
    assert [note.partition(": ")[2].partition(";")[0] for note in result.notes] == [
        "2 clips have a second caption file with another text, which is not read",
        "1 clip has an empty caption file beside another one, which is read",
    ]
    assert again.unchanged == 4


def test_captions_of_lists_are_as_those_of_files() -> None:
    lost = "a \ufffd\ufffd cat"  # which the advice on captions tells
    texts = [*UNSEEN, "a \ufffdcat", "a\0 cat", "a cat\u200b", lost, None]
    found = list_columns.read(pa.table({"path": texts, "text": pa.array(texts)})).table["text"].to_pylist()
    assert found == [*[None] * len(UNSEEN), "a cat", "a cat", "a cat\u200b", lost, None]


def test_a_line_or_tag_of_which_nothing_is_seen_is_none() -> None:
    assert captions.lines("a cat\n\u200b\r\n a dog") == ["a cat", "a dog"]
    assert captions.tags("a cat, \u2060, a dog", DatasetConfig(path=Path("d"), keep_tags=1)) == (["a cat"], ["a dog"])


def test_json_beside_a_clip_is_read_as_that_in_an_archive_and_never_written(folder: Path) -> None:
    _, captions, _ = scanned(folder, {"a.json": b'{"width": 4, "caption": "a cat"}'})
    assert captions == {"a": "a cat"}
    assert caption_names.file(folder / "a.png", CaptionNames(["a.png", "a.json"]).files_of("a.png")).name == "a.txt"
    _, captions, _ = scanned(folder, {"a.json": b'{"caption": "a cat"}', "a.txt": b"a dog"})
    assert captions == {"a": "a dog"}
    (folder / "a.txt").unlink()
    result, captions, _ = scanned(folder, {"a.json": b"[%s]" % (b"0.5, " * (1 << 18) + b"1")})
    assert (captions, result.bad) == ({"a": None}, 0)


def test_a_list_in_a_folder_is_told_with_how_it_is_read(folder: Path) -> None:
    (folder / "meta.jsonl").write_text('{"file_name": "a.png", "text": "a cat"}\n', encoding="utf-8")
    result, captions, _ = scanned(folder, {"a.txt": b""})
    assert not captions["a"]
    assert "captions in .jsonl are read of a list that is itself the dataset's path" in result.notes[0]


def test_a_caption_that_is_made_utf_8_is_a_change(folder: Path) -> None:
    scanned(folder, {"a.txt": b"caf\xe9"})
    result, captions, _ = scanned(folder, {"a.txt": "café".encode()})
    assert (result.changed, captions, result.notes) == (1, {"a": "café"}, ())


@pytest.mark.parametrize(
    ("text", "caption"),
    [
        ('{"caption": " a cat "}', "a cat"),
        ('{"TEXT": "a cat"}', "a cat"),
        ('{"prompt": "a cat", "width": 4}', "a cat"),
        ('{"text": null, "caption": "a cat"}', "a cat"),
        ('{"text": "", "caption": "a cat"}', "a cat"),
        ('{"text": "nan", "caption": "a cat"}', "a cat"),
        ('{"text": "\\u200b", "caption": "a \\u0000cat"}', "a cat"),
        ('{"caption": ["a cat", "two\\nlines", "None", 4]}', "a cat\ntwo lines"),
        ('{"caption": ["two\\nlines"]}', "two\nlines"),
        ('{"caption": []}', None),
        ('{"caption": 4}', None),
        ('["a cat"]', None),
        ("no json", None),
        ("", None),
    ],
)
def test_captions_in_json(text: str, caption: str | None) -> None:
    assert caption_texts.of_json(text) == caption
