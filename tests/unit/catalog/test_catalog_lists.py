"""A list names a dataset's files: each row is a clip or has a reason, with its caption and scores."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import shutil
import tracemalloc
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import media_makers as media
import numpy as np
import places
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.core.system import WINDOWS
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.query import captions, filters
from reelworks.data.catalog.scan import list_files, list_tables, lists
from reelworks.data.catalog.scan.scan import ScanResult, scan_sources
from reelworks.data.catalog.scan.update import uids_of
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import formats, probe
from reelworks.data.media.decode import Request, load
from reelworks.data.media.reading import MediaError

Row = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures, the first with a caption file."""
    for i, name in enumerate(("a.png", "sub/b.png", "sub/c.png")):
        media.write_picture(tmp_path / "data" / name, i)
    (tmp_path / "data" / "a.txt").write_text("beside a", encoding="utf-8")
    return tmp_path / "data"


def write(file: Path, rows: list[Row]) -> Path:
    """The rows as a list of the kind that the name says."""
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        with file.open("w", encoding="utf-8", newline="") as f:
            writer = csv.DictWriter(f, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return file


def scanned(file: Path, root: Path | str | None = None) -> ScanResult:
    return scan_sources([Source.from_path(file, root=root)], file.parent / "catalog", workers=1)


def live(file: Path) -> CatalogRows:
    return Catalog.open(file.parent / "catalog").live()


def by_path(file: Path) -> dict[str, Row]:
    """Caption, error and scores of the live rows."""
    rows = live(file)
    columns = {"caption": rows.caption.to_pylist(), "error": rows.error.to_pylist()}
    columns |= {n: [None if np.isnan(x) else x for x in s.tolist()] for n, s in rows.scores.items()}
    return {path: {name: values[i] for name, values in columns.items()} for i, path in enumerate(rows.path.to_pylist())}


FULL = [
    {"path": "a.png", "text": ' a "cat",\nred ', "aes": 5.5, "flow": 3, "num_frames": 9, "cmotion": "pan"},
    {"path": "sub/b.png", "text": "", "aes": None, "flow": 0, "num_frames": 9, "cmotion": "tilt"},
    {"path": "gone.mp4", "text": "a film", "aes": 4, "flow": None, "num_frames": 9, "cmotion": ""},
    {"path": "sub/notes.pdf", "text": "123", "aes": 1e3, "flow": 1, "num_frames": 9, "cmotion": None},
]


@pytest.mark.parametrize("name", ["meta.csv", "meta.parquet", "meta.jsonl", "META.CSV", *["a?.csv"] * (not WINDOWS)])
def test_each_row_is_a_clip_or_has_a_reason_with_its_caption_and_scores(folder: Path, name: str) -> None:
    """Empty cells are no caption and no score, what the catalog measures is not believed, texts are no scores."""
    file = write(folder / name, FULL)
    result = scanned(file)
    assert (result.found, result.new, result.bad) == (4, 4, 2)
    assert by_path(file) == {
        "a.png": {"caption": 'a "cat",\nred', "error": None, "aes": 5.5, "flow": 3},
        "sub/b.png": {"caption": None, "error": None, "aes": None, "flow": 0},
        "gone.mp4": {"caption": "a film", "error": "no such file", "aes": 4, "flow": None},
        "sub/notes.pdf": {"caption": "123", "error": "not a video or picture: .pdf", "aes": 1e3, "flow": 1},
    }
    assert set(live(file).num_frames.tolist()) == {0, 1}
    (note,) = result.notes
    assert note.endswith("scores aes, flow; ignored: num_frames (measured from the file), cmotion (no numbers)")


def test_without_a_column_of_captions_the_file_beside_a_clip_has_it(folder: Path) -> None:
    file = write(folder / "meta.csv", [{"path": "a.png"}, {"path": "sub/b.png"}])
    scanned(file)
    assert by_path(file) == {
        "a.png": {"caption": "beside a", "error": None},
        "sub/b.png": {"caption": None, "error": None},
    }


def test_a_clip_is_known_by_its_path_below_the_root_however_it_is_written(folder: Path, tmp_path: Path) -> None:
    """Absolute, roundabout and relative paths are one identity, which stays when all moves elsewhere."""
    plain = [{"path": "a.png", "text": ""}, {"path": "sub/b.png", "text": "b"}]
    written = [{"path": str(folder / "a.png"), "text": ""}, {"path": f"{folder}//sub/../sub/./b.png", "text": "b"}]
    file = write(folder / "meta.csv", plain)
    scanned(file)
    uids = live(file).uid.tolist()
    assert uids == np.sort(uids_of("meta", ["a.png", "sub/b.png"])).tolist()
    write(file, written)
    assert scanned(file).unchanged == 2
    (tmp_path / "lists").mkdir()
    elsewhere = write(tmp_path / "lists" / "meta.csv", written)
    with pytest.raises(UserError) as caught:
        scanned(elsewhere)
    assert "row 1" in caught.value.problem
    assert f'root = "{folder.as_posix()}"' in caught.value.remedy
    with pytest.raises(UserError) as caught:
        scanned(elsewhere, root=folder / "sub")
    assert f'root = "{folder.as_posix()}"' in caught.value.remedy
    scanned(elsewhere, root=folder)
    assert live(elsewhere).uid.tolist() == uids
    moved = Path(shutil.move(folder, tmp_path / "moved")) / "meta.csv"
    write(moved, plain)
    result = scanned(moved)
    assert (result.changed, result.new, live(moved).uid.tolist()) == (2, 0, uids)


@pytest.mark.parametrize("name", ["meta.csv", "meta.csv.gz", "meta.jsonl", "meta.jsonl.gz"])
def test_whether_a_list_is_packed_its_content_tells(name: str, folder: Path) -> None:
    file, pack = folder / name, (gzip.compress, lambda data: data)
    plain = write(folder / name.removesuffix(".gz"), [{"path": "a.png", "text": "words"}]).read_bytes()
    for encoded in (plain, plain.decode().replace("words", "中文").encode("utf-16")):
        for packed in pack:
            file.write_bytes(packed(encoded))
            scanned(file)
            assert by_path(file)["a.png"] == {"caption": "words" if encoded == plain else "中文", "error": None}
    file.write_bytes(gzip.compress(plain)[:-9])
    with refused("list-unreadable"):
        scanned(file)


def test_a_small_packed_list_is_read_in_little_memory(folder: Path) -> None:
    file = folder / "meta.csv.gz"
    file.write_bytes(gzip.compress(write(folder / "meta.csv", FULL).read_bytes()))
    tracemalloc.start()
    list_tables.read(file)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_the_cause_of_each_missing_file_is_looked_up_and_not_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, kind_of = Counter[str](), formats.kind_of
    monkeypatch.setattr(formats, "kind_of", lambda path: asked.update([path]) or kind_of(path))
    for number in range(200):
        (folder / f"{number}.png").touch()
    files = list_files.look_up(Source.from_path(folder), [f"{number}.jpg" for number in range(200)], captions=False)
    assert [file.problem for file in files] == [f"no such file: its folder has {number}.png" for number in range(200)]
    assert max(asked.values()) < 10


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_cause_of_a_missing_file_is_told_however_its_signs_are_composed(folder: Path, form: str) -> None:
    (folder / "é.png").touch()
    paths = [unicodedata.normalize(form, path) for path in ("É.png", "é.jpg")]
    files = list_files.look_up(Source.from_path(folder), paths, captions=False)
    assert [file.problem for file in files] == ["no such file: its folder has é.png"] * 2


def test_below_the_root_that_is_proposed_all_files_are_found(folder: Path, tmp_path: Path) -> None:
    """Also if they have nothing but the top folder in common; files here and at an address have not even that."""
    (tmp_path / "lists").mkdir()
    first = {"path": f"{folder}/a.png", "text": ""}
    for other in (folder / "sub" / "b.png", tmp_path / "none.png", Path(folder.anchor, "none.png")):
        file = write(tmp_path / "lists" / "meta.csv", [first, {"path": str(other), "text": ""}])
        with refused("list-row-invalid", says="row 1, .* lies outside") as caught:
            scanned(file)
        (root,) = re.findall(r'root = "(.+)"', caught.value.remedy)
        scanned(file, root=root)
        errors = [row["error"] for row in by_path(file).values()]
        assert sorted(map(str, errors)) == (["None"] * 2 if other.exists() else ["None", "no such file"])
    file = write(file, [first, {"path": "https://example.org/b.png", "text": ""}])
    with refused("list-row-invalid") as caught:
        scanned(file)
    assert caught.value.remedy == "make a list of its own for the files of each storage"


def test_captions_of_several_lines_are_read_wherever_they_stand(folder: Path) -> None:
    """A reader that cuts a file into blocks must not take a line of a caption for a row."""
    caption = "one\ntwo, three\n" * 40
    rows = [{"path": f"{i}.png", "text": f"{i} {caption}"} for i in range(3000)]
    file = write(folder / "meta.csv", [{"path": "a.png", "text": "x"}, *rows])
    assert file.stat().st_size > 1 << 20
    found = lists.read(Source.from_path(file)).captions.to_pylist()
    assert found == ["x", *(row["text"].strip() for row in rows)]


@pytest.mark.parametrize("name", ["meta.parquet", "meta.jsonl"])
def test_a_list_of_captions_is_a_line_for_each(folder: Path, name: str) -> None:
    """Their own line breaks become spaces; an empty list is no caption."""
    texts = [["one", " two\nlines "], [], ["only"]]
    rows = [{"path": path, "text": text} for path, text in zip(("a.png", "sub/b.png", "sub/c.png"), texts, strict=True)]
    scanned(write(folder / name, rows))
    found = {path: row["caption"] for path, row in by_path(folder / name).items()}
    assert found == {"a.png": "one\n two lines", "sub/b.png": None, "sub/c.png": "only"}


def test_texts_of_a_list_that_are_no_caption_are_told(folder: Path) -> None:
    texts = ["nan", "\u200b\u2060", "a kite", None]
    paths = ("a.png", "sub/b.png", "sub/c.png", "gone.png")
    rows = [{"path": path, "text": text} for path, text in zip(paths, texts, strict=True)]
    (note,) = scanned(write(folder / "meta.jsonl", rows)).notes
    assert "no caption: signs by which nothing is seen (1), nan (1)" in note


def test_captions_of_a_list_are_parted_where_they_were_joined(folder: Path) -> None:
    """Marks of Unicode, usual in texts of web pages, are within them."""
    texts = ["a kite\u2028above a beach", "a red\u2029kite\x85at dusk", "a boy\x0c\x0b\x1cruns"]
    scanned(write(folder / "meta.jsonl", [{"path": "a.png", "text": texts}]))
    (row,) = by_path(folder / "meta.jsonl").values()
    assert captions.lines(row["caption"]) == texts


@pytest.mark.parametrize("kind", [pa.list_(pa.string(), 2), pa.large_list(pa.string()), pa.list_(pa.large_string())])
def test_lists_of_captions_may_be_of_any_kind(folder: Path, kind: pa.DataType) -> None:
    """A `Sequence` of a fixed length in a library of datasets is stored as lists of that length."""
    texts = pa.array([["one", "two"], None, ["", "only"]], type=kind)
    pq.write_table(pa.table({"path": ["a.png", "sub/b.png", "sub/c.png"], "text": texts}), folder / "meta.parquet")
    scanned(folder / "meta.parquet")
    found = {path: row["caption"] for path, row in by_path(folder / "meta.parquet").items()}
    assert found == {"a.png": "one\ntwo", "sub/b.png": None, "sub/c.png": "only"}


def test_spaces_around_column_names_do_not_count(folder: Path) -> None:
    """A header written as `path, text` has a column of captions all the same."""
    (folder / "meta.csv").write_text("path, text, aes \na.png, a mug,5\n", encoding="utf-8")
    scanned(folder / "meta.csv")
    rows = live(folder / "meta.csv")
    assert rows.caption.to_pylist() == ["a mug"]
    assert rows.scores["aes"].tolist() == [5.0]


def test_a_link_to_the_folder_is_the_folder(folder: Path, tmp_path: Path) -> None:
    places.link(tmp_path / "link", folder)
    file = write(folder / "meta.csv", [{"path": f"{tmp_path}/link/a.png"}, {"path": f"{folder}/sub/b.png"}])
    scanned(tmp_path / "link" / "meta.csv")
    assert sorted(live(file).path.to_pylist()) == ["a.png", "sub/b.png"]


def rows_of(*aes: float | None, text: str = "t") -> list[Row]:
    return [{"path": p, "text": text, "aes": x} for p, x in zip(("a.png", "sub/b.png"), aes, strict=True)]


@pytest.mark.parametrize("captions", [True, False])
def test_a_changed_score_is_a_changed_row_and_opens_no_file(
    folder: Path, captions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions, retired rows and digests follow scores as they follow captions; the measures stay."""
    file = folder / "meta.csv"

    def scan_with(*aes: float | None) -> tuple[int, int, int, str]:
        write(file, [row if captions else row | {"text": ""} for row in rows_of(*aes)])
        if not captions:
            file.write_text(file.read_text(encoding="utf-8").replace("text", "comment"), encoding="utf-8")
        result = scanned(file)
        return result.new, result.changed, result.version, live(file).digest()

    first = scan_with(4.5, None)
    assert first[:3] == (2, 0, 1)
    monkeypatch.setattr(probe, "probe", None)
    assert scan_with(4.5, None) == (0, 0, *first[2:])
    assert scan_with(4.5, 2.0)[:3] == (0, 1, 2)
    assert scan_with(None, 2.0)[:3] == (0, 1, 3)
    assert by_path(file)["a.png"]["aes"] is None
    assert set(live(file).width.tolist()) == {int(live(file).width[0])} != {0}
    former = Catalog.open(folder / "catalog", 1).live()
    assert former.digest() == first[3] != live(file).digest()


def test_the_digest_follows_scores(folder: Path) -> None:
    """A column that no row has a number in changes nothing."""
    scanned(write(folder / "meta.csv", rows_of(1, 2)))
    rows = live(folder / "meta.csv")

    def digest(**scores: list[float]) -> str:
        return rows.replaced(scores={name: np.array(score) for name, score in scores.items()}).digest()

    aes = rows.scores["aes"].tolist()
    assert digest(aes=aes) == digest(aes=aes, flow=[np.nan, np.nan]) == rows.digest()
    different = {digest(aes=aes), digest(), digest(aes=aes[::-1]), digest(flow=aes), digest(aes=[1, np.nan])}
    assert len(different) == 5


def test_a_caption_of_the_list_and_its_rows_are_followed(folder: Path) -> None:
    """A changed caption is a changed row, a row taken out retires the clip, a list in a folder's place replaces it."""
    file = write(folder / "meta.csv", rows_of(1, 2))
    scanned(file)
    write(file, rows_of(1, 2, text="other"))
    assert scanned(file).changed == 2
    assert by_path(file)["a.png"] == {"caption": "other", "error": None, "aes": 1}
    write(file, rows_of(1, 2, text="other")[:1])
    result = scanned(file)
    assert (result.unchanged, result.removed, len(live(file))) == (1, 1, 1)
    result = scan_sources([Source("meta", folder)], folder / "catalog", workers=1)
    assert (result.new, result.changed) == (2, 1)
    assert by_path(file)["a.png"] == {"caption": "beside a", "error": None, "aes": None}


def test_an_edited_file_is_measured_again_and_a_missing_one_comes_back(folder: Path) -> None:
    file = write(folder / "meta.csv", rows_of(1, 2))
    (folder / "a.png").rename(folder / "away")
    assert scanned(file).bad_files == ((str(folder / "a.png"), "no such file"),)
    (folder / "away").rename(folder / "a.png")
    media.write_picture(folder / "sub" / "b.png", size=(9, 9))
    assert scanned(file).changed == 2
    assert 9 in live(file).width.tolist()
    assert by_path(file)["a.png"] == {"caption": "t", "error": None, "aes": 1}


def test_a_damaged_file_is_told_in_each_scan(folder: Path) -> None:
    (folder / "a.png").write_bytes((folder / "a.png").read_bytes()[:-30])
    file = write(folder / "meta.csv", rows_of(1, 2))
    assert [scanned(file).bad for _ in range(2)] == [1, 1]


def test_lists_with_other_scores_and_folders_stand_in_one_catalog(folder: Path) -> None:
    """A score that only one list has is missing elsewhere; a part knows only the scores of its time."""
    first = write(folder / "one.csv", rows_of(1, 2))
    second = write(folder / "two.parquet", [{"path": "a.png", "text": "x", "flow": 7}])
    scan_sources([Source.from_path(first)], folder / "catalog", workers=1)
    scan_sources([Source.from_path(second), Source("d", folder)], folder / "catalog", workers=1)
    rows = live(first)
    datasets = rows.dataset.to_pylist()
    told = sorted(zip(datasets, rows.scores["aes"].tolist(), rows.scores["flow"].tolist(), strict=True))
    nan = float("nan")
    expected = [("d", nan, nan)] * 3 + [("one", 1, nan), ("one", 2, nan), ("two", nan, 7)]
    assert repr(told) == repr([(n, float(a), float(f)) for n, a, f in expected])
    assert (
        scan_sources([Source.from_path(first), Source.from_path(second)], folder / "catalog", workers=1).unchanged == 3
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thing,text\na.png,x\n", "no column named path; it has thing, text"),
        ("path,aes\na.png,1\n,2\n", "row 2 has no path"),
        ("path,text\na.png,x\nsub/b.png,x\n./a.png,y\n", "the first is a.png in rows 1, 3"),
        ("path\na.png\n../b.png\n", "row 2, .*/b.png, lies outside"),
        ("path\na.png\n/etc/passwd.png\n", "row 2, /etc/passwd.png, lies outside"),
        ("path\nx.png\ny.mp4\n", "none of the 2 files of the list is .* the first is .*/x.png: no such file"),
        ("path\n", "the list has no rows"),
        ("path,aes\na.png,1,2\n", "cannot be read"),
        ("", "cannot be read"),
        ("path,path\na.png,b\n", "two columns are named path"),
        ("path,start_frame,Start Frame\na.png,1,2\n", "two columns are named start_frame"),
        ("path,end_seconds,end_seconds\na.png,1,2\n", "two columns are named end_seconds"),
        ("thing;text\na.png;x\n", "separate columns with commas"),
        ("a.png,x\nsub/b.png,y\n", "its first line names a file and no columns: write path,text above it"),
        (
            "path,text\na.png,x\nsub/b.png,y, z\n",
            "the row of line 3 has 3 cells in place of 2: put double quotes around",
        ),
        ('path,text\na.png,"x\nsub/b.png,y\n', "row that begins in line 2 .*unexpected end"),
        ('path,text\na.png,x\nsub/b.png,"y\nsub/c.png,"z\n', "row that begins in line 3 .*expected after"),
        ('path,size,text\na.png,"1,x\n' + "sub/b.png,1,y\n" * 200_000, "row that begins in line 2 "),
    ],
)
def test_a_wrong_list_is_refused_with_its_row_before_anything_is_written(folder: Path, text: str, said: str) -> None:
    (folder / "meta.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        scanned(folder / "meta.csv")
    assert not (folder / "catalog").exists()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (pa.array([b"\xff.png"]), "cannot be read: Invalid UTF8"),
        (pa.array(["a\0.png"]), "row 1, .* lies outside"),
        (pa.array([["a.png"]]), "row 1 has no path"),
        (None, "the list does not exist"),
    ],
)
def test_a_list_that_no_disk_could_have_is_refused(folder: Path, path: Any, said: str) -> None:
    """Bytes that are no text, names that no file can have, values that are no texts, no list at all."""
    if path is not None:
        pq.write_table(pa.table({"path": path}), folder / "meta.parquet")
    with pytest.raises(UserError, match=said):
        scanned(folder / "meta.parquet")


@pytest.mark.parametrize("name", ["image", "jpg", "file_name"])
@pytest.mark.parametrize("kind", ["bytes", "with a path", "without"])
def test_a_list_with_the_files_in_it_is_refused(folder: Path, name: str, kind: str) -> None:
    """Files of the same names that lie beside it may be others; a column of bytes beside paths is not looked at."""
    data = [(folder / "sub" / "b.png").read_bytes()] * 2
    values: Any = data
    if kind != "bytes":
        values = [{"bytes": each, "path": "a.png" if kind == "with a path" else None} for each in data]
    pq.write_table(pa.table({name: values, "text": ["red"] * 2}), folder / "meta.parquet")
    with refused("list-holds-files", says=f"the files themselves, in its column {name}"):
        scanned(folder / "meta.parquet")
    if name != "file_name":  # which would be that of the paths
        pq.write_table(pa.table({name: values, "file_name": ["sub/b.png", None]}), folder / "meta.parquet")
        with pytest.raises(UserError, match="row 2 has no path"):
            scanned(folder / "meta.parquet")
        pq.write_table(pa.table({name: values, "file_name": ["a.png", "sub/b.png"]}), folder / "meta.parquet")
        assert scanned(folder / "meta.parquet").found == 2


@pytest.mark.parametrize("fps", ["2024-01-01", "true,24", {"num": 24, "den": 1}, [24]])
def test_a_size_to_trust_that_is_no_single_number_is_refused_by_its_column(folder: Path, fps: Any) -> None:
    """Whatever type its column has, or if there are two."""
    file = folder / ("meta.csv" if isinstance(fps, str) else "meta.jsonl")
    row = {"path": "a.png", "height": 16, "width": 16, "num_frames": 1, "fps": fps}
    if isinstance(fps, str):
        columns = "path,height,width,num_frames,fps" + ",fps" * fps.count(",")
        file.write_text(f"{columns}\na.png,16,16,1,{fps}\n", encoding="utf-8")
    else:
        write(file, [row])
    with pytest.raises(UserError, match="fps") as caught:
        scan_sources([replace(Source.from_path(file), trust_list=True)], folder / "catalog", workers=1)
    assert caught.value.code in ("column-not-of-numbers", "duplicate-column")


@pytest.mark.parametrize("name", ["meta.jsonl", "meta.json"])
def test_half_a_surrogate_pair_costs_its_own_letter_alone(folder: Path, name: str) -> None:
    """Wherever it stands: programs that cut texts at a length write such ones. Whole pairs are letters."""
    rows = [
        {
            "path": "a.png",
            "text": "a cat \ud83d",
            "tags": ["\ude00"],
            "of": {"\ud83d": "\ud83d"},
            "aes\ud83d": 1,
            "aes": 2,
        },
        {"path": "sub/b.png", "text": "a smile \U0001f600", "tags": [], "of": {}, "aes": 1},
        {"path": "sub/c.png", "text": r"a \ud83d in words", "tags": [], "of": {}, "aes": 1},
    ]
    lines = [json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) if name == "meta.jsonl" else f"[{','.join(lines)}]", encoding="utf-8")
    scanned(folder / name)
    assert {path: (row["caption"], row["aes"]) for path, row in by_path(folder / name).items()} == {
        "a.png": ("a cat ?", 2),
        "sub/b.png": ("a smile \U0001f600", 1),
        "sub/c.png": (r"a \ud83d in words", 1),
    }


def test_an_address_in_a_list_of_this_machine_is_told_as_one(folder: Path) -> None:
    rows = ["https://h.org/a.mp4", "s3://bucket/x//./b.png", "a.png"]
    write(folder / "meta.csv", [{"path": path} for path in rows])
    scanned(folder / "meta.csv")
    errors = {path: row["error"] for path, row in by_path(folder / "meta.csv").items()}
    assert errors.pop("a.png") is None
    assert errors.keys() == set(rows[:2])
    assert all("it is an address; set root" in error for error in errors.values())


def test_a_word_in_a_column_of_numbers_is_named(folder: Path) -> None:
    """A score that one cell spoils is no score, and the note says which cell."""
    text = "path,aes,in,flow,words,match,two,two\na.png,1,1,nan,x,1,1,2\nsub/b.png,bad,1,inf,y,None,1,2\n"
    (folder / "meta.csv").write_text(text, encoding="utf-8")
    (note,) = scanned(folder / "meta.csv").notes
    assert "scores flow, match;" in note
    assert "aes (row 2 has 'bad', which is not a number)" in note
    for name in ("in", "two"):
        assert f'"{name}" (not a valid name in filters, or used by two columns)' in note
    assert "words (no numbers)" in note
    assert by_path(folder / "meta.csv")["sub/b.png"]["flow"] is None


@pytest.mark.parametrize("name", ["meta.csv", "meta.jsonl", "meta.parquet"])
def test_a_score_that_is_not_finite_is_none_of_a_clip_that_is_kept(folder: Path, name: str) -> None:
    scanned(write(folder / name, [{"path": "a.png", "aes": math.inf}, {"path": "sub/b.png", "aes": 2.0}]))
    assert [(row["error"], row["aes"]) for row in by_path(folder / name).values()] == [(None, None), (None, 2.0)]


@pytest.mark.parametrize("name", ["meta.csv", "meta.jsonl", "meta.parquet"])
def test_equal_rows_are_one_clip_and_others_of_a_file_are_refused(folder: Path, name: str) -> None:
    """Which of two captions or scores is valid, only the user can tell; however the rows spell the file."""
    row: Row = {"path": "a.png", "text": "one", "aes": 5.0, "more": "x"}
    other: Row = {"path": "sub/b.png", "text": "one", "aes": None, "more": ""}
    rows = [row, row | {"path": "./a.png"}, other, other | {"path": "sub%2Fb.png"}, row]
    result = scanned(write(folder / name, rows))
    assert any("equal to others, and are left out: 3" in note for note in result.notes)
    assert by_path(folder / name) == {
        "a.png": {"caption": "one", "error": None, "aes": 5.0},
        "sub/b.png": {"caption": "one", "error": None, "aes": None},
    }
    for key, value in (("text", "two"), ("aes", 4.0), ("aes", None), ("more", "y")):
        with refused(
            "duplicate-path", says="1 file in several rows that differ; the first is a.png in rows 1, 2, 5, 6"
        ):
            scanned(write(folder / name, [*rows, row | {key: value, "path": "a%2Epng"}]))


def test_a_filter_leaves_out_clips_without_the_score(folder: Path) -> None:
    """A comparison with a missing score neither holds nor fails: no filter keeps a clip by it, however it is turned."""
    file = write(folder / "meta.csv", [*rows_of(5, None), {"path": "sub/c.png", "text": "t", "aes": 4}])
    scanned(file)
    rows = live(file)

    def kept(text: str) -> set[str]:
        return set(rows.take(filters.keeps(rows, text)).path.to_pylist())

    everything = {"a.png", "sub/b.png", "sub/c.png"}
    assert kept("aes > 4.5") == kept("not aes <= 4.5") == kept("aes not in [4]") == {"a.png"}
    assert kept("aes != 5") == kept("not (aes == 5 or height < 0)") == {"sub/c.png"}
    assert kept("not (aes != 5) and not aes in [4]") == {"a.png"}
    assert kept("aes > 4.5 or not aes > 4.5") == everything - {"sub/b.png"}
    assert kept("aes > 4.5 or kind == 'image'") == everything
    assert kept("not (aes > 4.5 and kind == 'video')") == everything
    assert kept("eas > 0 or not eas > 0") == set()


def test_an_infinite_score_is_damage(folder: Path) -> None:
    scanned(write(folder / "meta.csv", rows_of(1, 2)))
    part = folder / "catalog" / "part-000000.parquet"
    table = pq.read_table(part)
    place = table.column_names.index("score:aes")
    pq.write_table(table.set_column(place, "score:aes", pa.array([1.0, np.inf])), part)
    with pytest.raises(UserError, match="has aes = inf"):
        live(folder / "meta.csv")


@pytest.mark.parametrize("column", ["text", "note"])
def test_a_trusted_list_that_is_corrected_is_believed_anew(tmp_path: Path, column: str) -> None:
    """And without the trust, files are opened. What a scan has measured stays."""
    media.write_video(tmp_path / "a.mp4")
    file = tmp_path / "list.csv"

    def frames(num_frames: int, *, trust: bool) -> tuple[int, int]:
        file.write_text(f"path,{column},num_frames,height,width,fps\na.mp4,x,{num_frames},48,64,24\n", encoding="utf-8")
        source = replace(Source.from_path(file), trust_list=trust)
        result = scan_sources([source], tmp_path / "catalog", workers=1)
        return int(Catalog.open(tmp_path / "catalog").live().num_frames[0]), result.unchanged

    steps = [(99, True), (99, True), (7, True), (7, False), (99, True)]
    assert [frames(n, trust=trust) for n, trust in steps] == [(99, 0), (99, 1), (7, 0), (8, 0), (8, 1)]


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "jpg"])
def test_an_animation_of_a_trusted_list_is_a_clip(tmp_path: Path, suffix: str) -> None:
    """Whatever its suffix, as without trust: a picture called a.jpg may be animated, and a still is contradicted by name."""
    kind, still = "gif" if suffix == "jpg" else suffix, Image.new("RGB", (32, 16))
    frames = [Image.new("RGB", (32, 16), (20 * i, 0, 0)) for i in range(5)]
    frames[0].save(tmp_path / f"a.{suffix}", kind, save_all=True, append_images=frames[1:], duration=100)
    still.save(tmp_path / f"b.{suffix}", kind)
    text = f"path,text,num_frames,height,width,fps\na.{suffix},x,5,16,32,10\nb.{suffix},x,1,16,32,\n"
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")
    if suffix == "jpg":  # a file of this name has one frame, whatever the list states
        still.save(tmp_path / "c.jpg")
        (tmp_path / "list.csv").write_text(f"{text}c.jpg,x,81,16,32,10\n", encoding="utf-8")
    source = Source.from_path(tmp_path / "list.csv")
    for trust in (True, False):
        scan_sources([replace(source, trust_list=trust)], tmp_path / f"catalog-{trust}", workers=1)
        rows = Catalog.open(tmp_path / f"catalog-{trust}").live()
        found = zip(rows.path.to_pylist(), rows.is_image.tolist(), rows.num_frames.tolist(), strict=True)
        stills = [("c.jpg", True, 1)] if suffix == "jpg" else []
        assert sorted(found) == [(f"a.{suffix}", False, 5), (f"b.{suffix}", True, 1), *stills]
    with pytest.raises(MediaError, match="the file has 1 frame, 5 are needed"):
        load(Request(tmp_path / f"b.{suffix}", is_image=False, shape=Shape(5, 16, 32)))


def test_a_trusted_list_opens_no_file_and_a_lie_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("true.mp4", "lie.mp4", "short.mp4", "partly.mp4"):
        media.write_video(tmp_path / name)
    media.write_picture(tmp_path / "p.png", size=(48, 64))
    opened: list[str] = []
    real = probe.probe
    monkeypatch.setattr(probe, "probe", lambda path: (opened.append(path.name), real(path))[1])
    (tmp_path / "list.csv").write_text(
        "path,text,num_frames,height,width,fps,aes\ntrue.mp4,a,8,48,64,24,5\nlie.mp4,b,8,96,64,24,5\n"
        "short.mp4,c,80,48,64,24,5\npartly.mp4,d,8,,64,24,5\np.png,e,1,64,48,,5\n",
        encoding="utf-8",
    )
    source = replace(Source.from_path(tmp_path / "list.csv"), trust_list=True)
    for _ in range(2):
        result = scan_sources([source], tmp_path / "catalog", workers=1)
    assert (opened, result.unchanged) == (["partly.mp4"], 5)
    rows = Catalog.open(tmp_path / "catalog").live()
    at = {path.as_py(): i for i, path in enumerate(rows.path)}
    assert rows.num_frames[at["short.mp4"]] == 80
    assert list(rows.scores) == ["aes"]

    def request(name: str, num_frames: int) -> Request:
        i = at[name]
        size = (int(rows.height[i]), int(rows.width[i]))
        return Request(rows.file(i), bool(rows.is_image[i]), Shape(num_frames, 32, 32), size=size)

    assert len(load(request("true.mp4", 8))) == 8
    assert len(load(request("p.png", 1))) == 1
    with pytest.raises(MediaError, match="has 64 × 48 pixels, but was scanned or listed with 64 × 96"):
        load(request("lie.mp4", 8))
    with pytest.raises(MediaError, match="the file has 8 frames, 60 are needed"):
        load(request("short.mp4", 60))
