"""Captions are written once and whole, beside their clips or into a list, wherever a run is killed."""

from __future__ import annotations

import base64
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import durable
import killing
import media_makers as media
import pyarrow.parquet
import pytest
from captioned import EXPECTED, SED, clips, run, texts
from refused import refused

from reelworks.annexes.captions import caption, record
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.core import storage, system
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import list_tables
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.run import lock

pytestmark = pytest.mark.skipif(
    system.WINDOWS, reason="captioners are commands of sh and sed here; test_caption_verb has another"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return clips(tmp_path / "data")


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_each_clip_gets_its_caption_and_the_record_tells_how(data: Path) -> None:
    done = run(data, trigger="rwmug", max_words=30)
    assert texts(data) == {name: f"rwmug, {text}" for name, text in EXPECTED.items()}
    assert (done.clips, done.captioned, done.kept, done.failed, done.notes) == (5, 5, 0, (), ())
    began, *clips_, ended = lines(data / record.NAME)
    assert began["how"]["command"] == SED
    assert (began["how"]["trigger"], began["how"]["max_words"]) == ("rwmug", 30)
    assert {line["clip"]: (line["captions"], line["former"]) for line in clips_} == {
        f"p{i}.png": ([f"rwmug, A picture named p{i}."], None) for i in range(4)
    } | {"v.mp4": (["rwmug, A video named v."], None)}
    assert (ended["captioned"], ended["failed"]) == (5, 0)


def test_the_record_is_no_footage(data: Path, tmp_path: Path) -> None:
    run(data)
    found = scan_sources([Source("d", data)], tmp_path / "catalog", workers=1)
    assert (found.found, found.bad) == (5, 0)
    captions = Catalog.open(tmp_path / "catalog").live().caption.to_pylist()
    assert sorted(captions) == sorted(text.strip() for text in EXPECTED.values())


def test_captions_that_are_there_stay(data: Path) -> None:
    (data / "p0.txt").write_text("mine", encoding="utf-8")
    (data / "p1.caption").write_text("mine, too", encoding="utf-8")
    (data / "p2.txt").write_text(" \n", encoding="utf-8")  # which is none
    done = run(data)
    assert (done.captioned, done.kept) == (3, 2)
    assert texts(data) == {name: text for name, text in EXPECTED.items() if name != "p1.txt"} | {"p0.txt": "mine"}
    assert run(data).captioned == 0


@pytest.mark.parametrize("doing", ["caption", "list", "undo", "settle"])
def test_nothing_is_written_where_the_lock_is_lost(data: Path, tmp_path: Path, doing: str) -> None:
    """Another run may have taken over the folder meanwhile."""
    if doing in ("undo", "settle"):
        run(data)
    if doing == "settle":
        kept = (data / record.NAME).read_text(encoding="utf-8").splitlines(keepends=True)[:-1]
        (data / record.NAME).write_text("".join(kept), encoding="utf-8")
        (data / f"{Path(json.loads(kept[-1])['clip']).stem}.txt").unlink()
    options = {"list": {"list": tmp_path / "list.jsonl"}, "undo": {"undo": True}}.get(doing, {})
    before, lock_file = texts(data), (tmp_path if doing == "list" else data) / caption._LOCK
    opened = record.CaptionRecord.__init__

    def lose(self: record.CaptionRecord, *arguments: object) -> None:
        opened(self, *arguments)
        lock_file.unlink()

    with pytest.MonkeyPatch.context() as patch, refused("lock-lost", "DATA", says="its lock file was removed"):
        patch.setattr(record.CaptionRecord, "__init__", lose)
        run(data, **options)
    assert texts(data) == before
    assert not (tmp_path / "list.jsonl").exists()


def test_overwritten_captions_can_be_put_back(data: Path) -> None:
    (data / "p0.txt").write_text("mine", encoding="utf-8")
    (data / "p1.caption").write_bytes(b"not utf-8 \xff")
    (data / "p2.txt").write_text("changed afterwards", encoding="utf-8")
    done = run(data, overwrite=True)
    assert (done.captioned, done.kept) == (5, 0)
    assert texts(data) == {name: text for name, text in EXPECTED.items() if name != "p1.txt"}
    assert (data / "p1.caption").read_text(encoding="utf-8") == EXPECTED["p1.txt"]
    former = {line["clip"]: line for line in lines(data / record.NAME) if "clip" in line}
    assert former["p0.png"]["former"] == "mine"
    assert base64.b64decode(former["p1.png"]["former_base64"]) == b"not utf-8 \xff"
    (data / "p2.txt").write_text("changed again", encoding="utf-8")
    undone = run(data, undo=True)
    assert sorted(Path(file).name for file in undone.restored) == ["p0.txt", "p1.caption", "p3.txt", "v.txt"]
    assert [Path(file).name for file in undone.changed_since] == ["p2.txt"]
    assert texts(data) == {"p0.txt": "mine", "p2.txt": "changed again"}
    assert (data / "p1.caption").read_bytes() == b"not utf-8 \xff"
    with refused("nothing-to-undo", "undo"):
        run(data, undo=True)


def test_a_part_of_a_run_is_undone_and_the_rest_later(data: Path) -> None:
    (data / "part.csv").write_text("path\np0.png\np1.png\n", encoding="utf-8")
    (data / "p0.txt").write_text("mine", encoding="utf-8")
    run(data)
    run(data, command="echo Another one.", overwrite=True)
    undone = run(data / "part.csv", undo=True)
    assert (undone.restored, undone.changed_since) == ((str(data / "p1.txt"), str(data / "p0.txt")), ())
    assert texts(data) == dict.fromkeys(EXPECTED, "Another one.\n") | {
        "p0.txt": "mine",
        "p1.txt": EXPECTED["p1.txt"],
    }
    assert len(run(data, undo=True).restored) == 3
    assert texts(data) == EXPECTED | {"p0.txt": "mine"}
    assert len(run(data / "part.csv", undo=True).restored) == 1  # what the first run wrote
    assert len(run(data, undo=True).restored) == 3
    assert texts(data) == {"p0.txt": "mine"}


def test_a_finished_run_with_overwrite_begins_again(data: Path) -> None:
    run(data, overwrite=True)
    assert run(data, overwrite=True).captioned == 5


def test_damaged_clips_are_named_and_the_others_go_on(data: Path) -> None:
    """However many follow each other: no captioner is to blame for them."""
    (data / "bad.mp4").write_bytes((data / "v.mp4").read_bytes()[:300])
    empty = [f"empty{i:02}.png" for i in range(21)]
    for name in empty:
        (data / name).write_bytes(b"")
    done = run(data)
    reasons = {failed.clip: failed.reason.partition(":")[0] for failed in done.failed}
    assert reasons == {"data/bad.mp4": "truncated"} | dict.fromkeys([f"data/{name}" for name in empty], "zero bytes")
    assert texts(data) == EXPECTED


def test_two_clips_with_one_caption_file_get_none(data: Path) -> None:
    media.write_picture(data / "v.png")
    done = run(data)
    assert {failed.clip for failed in done.failed} == {"data/v.png", "data/v.mp4"}
    assert all("v.txt is that of v." in failed.reason for failed in done.failed)
    assert "v.txt" not in texts(data)


@pytest.mark.parametrize("count", [237, 238, 251])
def test_a_name_too_long_for_a_caption_file_costs_its_clip_alone(data: Path, count: int) -> None:
    named = "x" * count
    (data / "p0.png").rename(data / f"{named}.png")
    done = run(data, command="echo A cat.")
    fits = count == 237
    assert (done.captioned, ["too long" in failed.reason for failed in done.failed]) == (4 + fits, [True] * (not fits))
    assert (f"{named}.txt" in texts(data)) == fits
    assert run(data, list=data / "new.jsonl").failed == ()


def test_captions_in_files_with_numbers_are_left(data: Path) -> None:
    (data / "p0.txt").write_text("one", encoding="utf-8")
    (data / "p0.1.txt").write_text("two", encoding="utf-8")
    done = run(data, overwrite=True)
    assert [failed.clip for failed in done.failed] == ["data/p0.png"]
    assert texts(data)["p0.txt"] == "one"


def test_several_captions_are_lines(data: Path) -> None:
    command = "awk '{print \"words\", length($0)}'"
    done = run(data, command=command, captions=3, prompt="What?")
    assert len(texts(data)["p0.txt"].splitlines()) == 3
    assert any('captions = "lines"' in note for note in done.notes)


def test_a_dry_run_shows_captions_and_writes_nothing(data: Path) -> None:
    before = sorted(data.iterdir())
    done = run(data, dry_run=True)
    assert sorted(data.iterdir()) == before
    assert done.captioned == 5
    assert [(one.captions, one.file) for one in done.examples] == [
        ((f"A picture named p{i}.",), str(data / f"p{i}.txt")) for i in range(3)
    ]
    says_nothing_of_p1 = SED.replace("sed -E '", r"sed -E '/p1\.png/s/.*//;")
    done = run(data, command=says_nothing_of_p1, dry_run=True)
    assert [one.clip for one in done.failed] == ["data/p1.png"]
    assert (done.captioned, len(done.examples)) == (4, 2)


def test_a_record_names_no_file_of_others(data: Path, tmp_path: Path) -> None:
    """A record that came with the data writes nowhere but beside its clips."""
    run(data)
    kept = lines(data / record.NAME)[:2]
    kept[1] |= {"file": "../secret.txt", "former": None}
    (data / record.NAME).write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    run(data)
    with refused("nothing-to-undo", "undo"):
        run(data, undo=True)
    assert not (tmp_path / "secret.txt").exists()


def test_lists(data: Path, tmp_path: Path) -> None:
    """A list gets captions for the clips without, keeps its other columns, and is a dataset."""
    (data / "meta.csv").write_text(
        'path,text,aes,where\np0.png,mine,4.5,"a, b"\np1.png,,5.5,c\nv.mp4,,,\n', encoding="utf-8"
    )
    with refused("captions-need-a-list", "DATA"):
        run(data / "meta.csv", overwrite=True)
    for suffix in ("csv", "parquet", "jsonl"):
        done = run(data / "meta.csv", list=data / f"new.{suffix}")
        assert (done.captioned, done.kept) == (2, 1)
        scan_sources([Source.from_path(data / f"new.{suffix}")], tmp_path / suffix, workers=1)
        rows = Catalog.open(tmp_path / suffix).live()
        assert dict(zip(rows.path.to_pylist(), rows.caption.to_pylist(), strict=True)) == {
            "p0.png": "mine",
            "p1.png": "A picture named p1.",
            "v.mp4": "A video named v.",
        }
        assert rows.scores["aes"][rows.is_image].tolist() == [4.5, 5.5]
    assert texts(data) == {}
    assert pyarrow.parquet.read_table(data / "new.parquet").column("where").to_pylist() == ["a, b", "c", ""]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_equal_rows_of_a_list_are_one_in_the_new_one(data: Path, suffix: str) -> None:
    rows = [{"path": name, "id": number} for name, number in (("p0.png", "007"), ("p0.png", "007"), ("p1.png", "1.10"))]
    (data / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (data / "a.csv").write_text("path,id\n" + "".join(f"{row['path']},{row['id']}\n" for row in rows), encoding="utf-8")
    for former in ("a.jsonl", "a.csv"):
        run(data / former, list=data / f"new.{suffix}", command="echo A cat.", overwrite=True)
        table = list_tables.read(data / f"new.{suffix}").table
        assert table.column("path").to_pylist() == ["p0.png", "p1.png"]
        assert table.column("text").to_pylist() == ["A cat."] * 2
        (data / f"new.{suffix}").unlink()


def test_other_columns_are_copied_as_they_stand(data: Path) -> None:
    (data / "a.csv").write_text(
        "id,path,ok,price,huge\n007,p0.png,True,1.10,123456789012345678901\nNA,p1.png,,,\n", encoding="utf-8"
    )
    run(data / "a.csv", list=data / "new.csv", command="echo 'A cat, \"red\".'")
    assert (data / "new.csv").read_text(encoding="utf-8") == (
        "id,path,ok,price,huge,text\n"
        '007,p0.png,True,1.10,123456789012345678901,"A cat, ""red""."\n'
        'NA,p1.png,,,,"A cat, ""red""."\n'
    )
    rows = [
        {"image": "p0.png", "at": "2024-01-01 10:00:00", "huge": 10**30, "of": {"x": [1, None]}},
        {"image": "p1.png", "of": None},
    ]
    (data / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run(data / "a.jsonl", list=data / "new.jsonl", command="echo A cat.")
    assert lines(data / "new.jsonl") == [
        {"path": "p0.png", "at": "2024-01-01 10:00:00", "huge": 10**30, "of": {"x": [1, None]}, "text": "A cat."},
        {"path": "p1.png", "of": None, "text": "A cat."},
    ]
    for name, text in (
        ("b", '{"path": "p0.png"} {"path": "p1.png"}\n'),
        ("c", '{"path":\n"p0.png"}\n{"path": "p1.png"}'),
    ):
        (data / f"{name}.jsonl").write_text(text, encoding="utf-8")
        run(data / f"{name}.jsonl", list=data / f"new-{name}.jsonl", command="echo A cat.")
        assert lines(data / f"new-{name}.jsonl") == [{"path": f"p{i}.png", "text": "A cat."} for i in range(2)]


@pytest.mark.parametrize(
    "form",
    [
        lambda text: text.replace(",", ";").encode(),
        lambda text: text.encode("utf-16"),
        lambda text: b"sep=,\n" + text.encode(),
        lambda text: text.encode() + b" \n",
    ],
    ids=["semicolons", "UTF-16", "for Excel", "a blank line"],
)
def test_texts_of_other_forms_of_csv_stay_too(data: Path, form: Callable[[str], bytes]) -> None:
    """A number, a date or a truth value that is written again looks otherwise."""
    text = "path,id,price,when,ok,who\np0.png,007,1.10,2024-01-01 10:00:00,TRUE,Zoë\n"
    (data / "a.csv").write_bytes(form(text))
    run(data / "a.csv", list=data / "new.csv", command="echo A cat.")
    head, row = text.splitlines()
    assert (data / "new.csv").read_text(encoding="utf-8") == f"{head},text\n{row},A cat.\n"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_several_lists_become_one_with_all_columns(data: Path, tmp_path: Path, suffix: str) -> None:
    clips(data / "sub", 1)
    (data / "a.csv").write_text("path,caption,aes\np0.png,mine,4.5\n", encoding="utf-8")
    (data / "sub" / "b.jsonl").write_text('{"path": "p0.png", "flow": 7}\n', encoding="utf-8")
    run((data / "a.csv", data / "sub" / "b.jsonl"), list=data / f"new.{suffix}")
    scan_sources([Source.from_path(data / f"new.{suffix}")], tmp_path / "catalog", workers=1)
    rows = Catalog.open(tmp_path / "catalog").live()
    assert rows.path.to_pylist() == ["p0.png", "sub/p0.png"]
    assert rows.caption.to_pylist() == ["mine", "A picture named p0."]
    assert (rows.scores["aes"][0], rows.scores["flow"][1]) == (4.5, 7)


def test_ranges_in_seconds_stay_and_are_not_mixed_with_frames(data: Path, tmp_path: Path) -> None:
    (data / "a.csv").write_text("path,start_seconds,end_seconds\nv.mp4,0.05,0.2\n", encoding="utf-8")
    (data / "b.csv").write_text("path\np0.png\n", encoding="utf-8")
    (data / "c.csv").write_text("path,start_frame\nv.mp4,1\n", encoding="utf-8")
    run((data / "a.csv", data / "b.csv"), list=data / "new.csv")
    assert (data / "new.csv").read_text(encoding="utf-8") == (
        "path,start_seconds,end_seconds,text\nv.mp4,0.05,0.2,A video named v.\np0.png,,,A picture named p0.\n"
    )
    with refused("ranges-given-twice", "list"):
        run((data / "a.csv", data / "c.csv"), list=data / "mixed.csv", command="false")


def test_a_list_of_several_captions_and_of_ranges(data: Path) -> None:
    (data / "cuts.csv").write_text("path,start_frame,end_frame\nv.mp4,0,3\nv.mp4,3,6\n", encoding="utf-8")
    with refused("captions-need-a-list", "DATA"):
        run(data / "cuts.csv")
    counted = 'awk \'{n = gsub(/frame-/, ""); print n, "frames", length($0)}\''
    done = run(data / "cuts.csv", list=data / "new.jsonl", captions=2, command=counted)
    assert done.captioned == 2
    new = lines(data / "new.jsonl")
    assert [(row["start_frame"], row["end_frame"], len(row["text"])) for row in new] == [(0, 3, 2), (3, 6, 2)]
    assert all(text.startswith("3 frames") for row in new for text in row["text"])


def test_members_of_archives_need_a_list(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    with tarfile.open(folder / "all.tar", "w") as packed:
        packed.add(data / "p0.png", "p0.png")
        packed.add(data / "v.mp4", "v.mp4")
    with refused("captions-need-a-list", "DATA", says="tar archive"):
        run(folder)
    done = run(folder, list=folder / "new.jsonl", command="echo 'a thing'")
    assert done.captioned == 2
    assert {row["path"]: row["text"] for row in lines(folder / "new.jsonl")} == {
        "all.tar/p0.png": "a thing",
        "all.tar/v.mp4": "a thing",
    }
    scan_sources([Source.from_path(folder / "new.jsonl")], tmp_path / "catalog", workers=1)
    rows = Catalog.open(tmp_path / "catalog").live()
    assert (rows.caption.to_pylist(), rows.readable.tolist()) == (["a thing"] * 2, [True] * 2)
    assert run(folder, list=folder / "new.jsonl", overwrite=True, command="false").failed != ()
    assert [row["text"] for row in lines(folder / "new.jsonl")] == ["a thing"] * 2


@pytest.mark.parametrize(
    ("text", "is_captioned"), [("\u200b\n", False), ("\ufeff", False), ("nan", False), ("猫", True)]
)
def test_a_file_is_kept_if_something_is_seen_of_its_text(tmp_path: Path, text: str, is_captioned: bool) -> None:
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    assert record.is_captioned(tmp_path / "a.txt") == is_captioned


def test_a_catalog_is_captioned_beside_its_files_or_into_a_list(data: Path, tmp_path: Path) -> None:
    scan_sources([Source("d", data)], tmp_path / "catalog", workers=1)
    listed = run(tmp_path / "catalog", list=tmp_path / "new.csv")
    assert listed.captioned == 5
    assert any(f'root = "{data}"' in note for note in listed.notes)
    assert run(tmp_path / "catalog").captioned == 5
    assert texts(data) == EXPECTED


def test_captions_that_only_a_catalog_has_are_counted(data: Path, tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text("path,text\np0.png,a mug\np1.png,\n", encoding="utf-8")
    scan_sources([Source.from_path(str(tmp_path / "some.csv"), root=str(data))], tmp_path / "catalog", workers=1)
    (note,) = run(tmp_path / "catalog").notes
    assert note.startswith("1 caption is kept that only the catalog has")


def test_captions_of_a_list_are_known_by_its_catalog(data: Path, tmp_path: Path) -> None:
    (data / "meta.csv").write_text("path,text\np0.png,mine\np1.png,\n", encoding="utf-8")
    scan_sources([Source.from_path(data / "meta.csv")], tmp_path / "catalog", workers=1)
    done = run(tmp_path / "catalog")
    assert (done.captioned, done.kept, [failed.clip for failed in done.failed]) == (0, 1, ["meta/p1.png"])
    assert texts(data) == {}
    done = run(tmp_path / "catalog", list=data / "new.jsonl")
    assert (done.captioned, done.kept) == (1, 1)
    assert [row["text"] for row in lines(data / "new.jsonl")] == ["mine", "A picture named p1."]


def test_clips_of_long_videos_keep_their_ranges(data: Path, tmp_path: Path) -> None:
    media.write_video(data / "long.mp4", num_frames=48)
    scan_sources([Source("d", data, cut="1.0s")], tmp_path / "catalog", workers=1)
    done = run(tmp_path / "catalog", list=data / "new.csv")
    assert done.captioned == 7
    scan_sources([Source.from_path(data / "new.csv")], tmp_path / "again", workers=1)
    rows = Catalog.open(tmp_path / "again").live()
    of_long = [i for i in range(len(rows)) if rows.path[i].as_py() == "long.mp4"]
    assert sorted((int(rows.first_frame[i]), int(rows.num_frames[i])) for i in of_long) == [(0, 24), (24, 24)]
    assert [failed.clip for failed in run(tmp_path / "catalog").failed] != []
    assert "long.txt" not in texts(data)


def test_several_folders_have_records_of_their_own_and_one_list(tmp_path: Path) -> None:
    for name in "ab":
        clips(tmp_path / name, 2)
    run((tmp_path / "a", tmp_path / "b"), list=tmp_path / "new.jsonl")
    assert {row["path"]: row["text"] for row in lines(tmp_path / "new.jsonl")} == {
        f"{name}/{clip}": text
        for name in "ab"
        for clip, text in (
            ("p0.png", "A picture named p0."),
            ("p1.png", "A picture named p1."),
            ("v.mp4", "A video named v."),
        )
    }
    done = run((tmp_path / "a", tmp_path / "b"))
    assert sorted(done.records) == [str(tmp_path / name / record.NAME) for name in "ab"]
    assert len(texts(tmp_path)) == 3  # by name, in each of the two
    assert len(run((tmp_path / "a",), undo=True).restored) == 3
    assert texts(tmp_path / "a") == {}
    assert len(texts(tmp_path / "b")) == 3


def test_a_list_that_cannot_be_written_is_told_before_anything_is_asked(data: Path) -> None:
    (data / "meta.jsonl").write_text('{"path": "p0.png", "marks": [1, 2]}\n', encoding="utf-8")
    with refused("list-suffix", "list", says="parquet"):
        run(data / "meta.jsonl", list=data / "new.csv", command="false")
    assert run(data / "meta.jsonl", list=data / "new.parquet").captioned == 1


def test_a_list_of_others_is_not_replaced(data: Path) -> None:
    (data / "new.csv").write_text("mine\n", encoding="utf-8")
    with refused("output-exists", "list"):
        run(data, list=data / "new.csv")
    assert run(data, list=data / "new.csv", overwrite=True).captioned == 5
    assert run(data, list=data / "new.csv").captioned == 0  # the same command finds its own list


def test_a_list_keeps_its_captions_whatever_runs_come_later(data: Path) -> None:
    """Another captioner asks only for what is missing; one that fails for a clip takes none away."""
    new = data / "new.jsonl"
    says_nothing_of_p1 = SED.replace("sed -E '", r"sed -E '/p1\.png/s/.*//;")
    run(data, list=new, command=says_nothing_of_p1)
    first = {row["path"]: row.get("text") for row in lines(new)}
    done = run(data, list=new, command="echo 'Another one.'", max_words=9)
    assert (done.captioned, done.kept) == (1, 4)
    assert {row["path"]: row["text"] for row in lines(new)} == first | {"p1.png": "Another one."}
    done = run(data, list=new, command=r"sed -E 's/.*p[1-3]\.png.*//; s/.+/A third one./'", overwrite=True)
    assert len(done.failed) == 3
    assert {row["path"]: row["text"] for row in lines(new)} == first | {
        "p0.png": "A third one.",
        "p1.png": "Another one.",
        "v.mp4": "A third one.",
    }
    run(data, list=new)  # without --overwrite, nothing goes back to what it was
    assert lines(new)[0]["text"] == "A third one."


def test_captions_that_are_corrected_in_the_source_come_into_the_list(data: Path) -> None:
    (data / "p0.txt").write_text("Before.", encoding="utf-8")
    run(data, list=data / "new.jsonl")
    (data / "p0.txt").write_text("Corrected.", encoding="utf-8")
    run(data, list=data / "new.jsonl")
    assert [row["text"] for row in lines(data / "new.jsonl")][:2] == ["Corrected.", "A picture named p1."]


def test_a_list_is_written_again_when_all_its_files_have_other_names(data: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.jsonl"
    run(data, list=new)
    data.rename(tmp_path / "moved")
    assert run(tmp_path / "moved", list=new).clips == 5
    assert len(lines(new)) == 5


def test_lists_whose_columns_do_not_fit_together_are_told_before_anything_is_asked(data: Path, tmp_path: Path) -> None:
    (data / "a.jsonl").write_text('{"path": "p0.png", "id": 1}\n', encoding="utf-8")
    (data / "b.jsonl").write_text('{"path": "p1.png", "id": "x1"}\n', encoding="utf-8")
    with refused("list-suffix", "list", says="write a list for each"):
        run((data / "a.jsonl", data / "b.jsonl"), list=tmp_path / "new.jsonl", command="false")


def test_captions_in_a_list_that_was_edited_go_into_the_record_and_the_prompt(data: Path) -> None:
    run(data, list=data / "new.jsonl")
    edited = (data / "new.jsonl").read_text(encoding="utf-8").replace("A picture named p0.", "Mine.")
    (data / "new.jsonl").write_text(edited, encoding="utf-8")
    with refused("output-exists", "list"):
        run(data, list=data / "new.jsonl")
    asked = 'sed -E \'s/.*prompt": "([^"]*)".*/Not \\1/\''
    run(data, list=data / "new.jsonl", overwrite=True, command=asked, prompt="{name}: {caption}")
    assert lines(data / "new.jsonl")[0]["text"] == "Not p0: Mine."
    assert "Mine." in {line.get("former") for line in lines(data / f".new.jsonl{record.NAME}")}


def test_a_list_that_is_written_meanwhile_stays_and_the_answers_are_not_lost(data: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.jsonl"
    with refused("output-exists", "list", says="while clips were captioned"):
        run(data, list=new, command=f"sh -c 'echo mine > {new}; echo A cat.'")
    assert new.read_text(encoding="utf-8") == "mine\n"
    new.unlink()
    done = run(data, list=new, command=f"sh -c 'echo mine > {new}; echo A cat.'")
    assert (done.captioned, done.kept) == (0, 5)
    assert [row["text"] for row in lines(new)] == ["A cat."] * 5


def test_a_list_has_what_a_killed_run_with_other_options_was_told(data: Path) -> None:
    new = data / "new.jsonl"
    run(data, list=new, command=r"sed -E 's/.*p[1-3]\.png.*//; s/.+/One./'")
    with pytest.raises(Killed), killed_at(9):
        run(data, list=new)
    answered = {line["clip"] for line in lines(data / f".new.jsonl{record.NAME}") if "clip" in line}
    assert len(answered) > 2
    done = run(data, list=new, command="echo Two.")
    assert (done.captioned, done.kept) == (5 - len(answered), len(answered))


def test_a_list_that_is_a_folder_is_refused(data: Path) -> None:
    (data / "new.csv").mkdir()
    with refused("file-unwritable", "list", says="a folder"):
        run(data, list=data / "new.csv")


def test_former_captions_of_a_clip_stay_several_in_a_list_of_several(data: Path) -> None:
    (data / "p0.txt").write_text("one\ntwo\n", encoding="utf-8")
    run(data, list=data / "new.jsonl", captions=2, command="awk '{print \"words\", length($0)}'")
    assert lines(data / "new.jsonl")[0]["text"] == ["one", "two"]


class Killed(BaseException):
    """The process is gone."""


@contextmanager
def killed_at(number: int) -> Iterator[list[str]]:
    """End at a call to the disk; nothing that comes after it has an effect, as in a process that is gone."""
    calls: list[str] = []

    def guard(call: str, path: Path) -> None:
        calls.append(call)
        if len(calls) > number:
            raise Killed

    with storage.guarded(guard):
        yield calls


def test_a_caption_that_a_killed_run_left_open_is_not_written_over_what_came_since(data: Path) -> None:
    """The record has the caption of p0 and the text that it had before, when the run is killed."""

    def die(call: str, path: Path) -> None:
        if call == "write" and path.name.startswith(".p0.txt"):
            raise Killed

    (data / "p0.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(Killed), storage.guarded(die):
        run(data, overwrite=True)
    assert (lines(data / record.NAME)[-1]["clip"], texts(data)["p0.txt"]) == ("p0.png", "mine")
    (data / "p0.txt").write_text("mine, and better", encoding="utf-8")
    run(data)
    assert texts(data) == EXPECTED | {"p0.txt": "mine, and better"}


def test_a_line_of_the_record_is_durable_before_its_caption_file_is_written(data: Path) -> None:
    checked = []

    def is_told(synced: durable.Synced, path: Path) -> None:
        checked.append(path)
        assert synced.has_content(data / record.NAME)
        assert synced.has_name(data / record.NAME)

    with durable.before_renames(is_told):
        run(data)
    assert len(checked) == len(EXPECTED)


def kill_everywhere(folder: Path, **options: object) -> int:
    """Kill a run at each of its calls to the disk, each time going on with the same command; returns their number."""
    for number in itertools.count():
        try:
            with killed_at(number % 14):  # so that some get further than others
                run(folder, **options)
            return number
        except Killed:
            assert number < 500, "it makes no progress"
    raise AssertionError


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_at_each_call_the_files_are_those_of_an_uninterrupted_run(data: Path, overwrite: bool) -> None:
    (data / "p0.txt").write_text("mine", encoding="utf-8")
    assert kill_everywhere(data, overwrite=overwrite) >= 5
    expected = EXPECTED if overwrite else EXPECTED | {"p0.txt": "mine"}
    assert texts(data) == expected
    of_clip: dict[str, int] = {}
    for line in record._read(data / record.NAME):
        if "clip" in line:
            of_clip[line["clip"]] = of_clip.get(line["clip"], 0) + 1
    assert of_clip.keys() == {"v.mp4", *(f"p{i}.png" for i in range(4) if overwrite or i)}
    assert set(of_clip.values()) == {1}  # none was captioned twice
    restored = run(data, undo=True)
    assert restored.changed_since == ()


def test_a_list_of_a_killed_run_is_that_of_an_uninterrupted_one(data: Path, tmp_path: Path) -> None:
    assert kill_everywhere(data, list=tmp_path / "a" / "new.jsonl") >= 5
    run(data, list=tmp_path / "b" / "new.jsonl")
    assert (tmp_path / "a" / "new.jsonl").read_bytes() == (tmp_path / "b" / "new.jsonl").read_bytes()


def test_a_full_disk_ends_the_run_and_a_folder_that_is_not_writable_costs_its_clips(data: Path) -> None:
    def full(call: str, path: Path) -> None:
        if call == "write" and path.name.startswith(".p2.txt"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with storage.guarded(full), refused("file-unwritable", says="No space left"):
        run(data)
    assert texts(data) == {name: text for name, text in EXPECTED.items() if name < "p2"}

    def denied(call: str, path: Path) -> None:
        if call == "open" and path.name.startswith(".p3.txt"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with storage.guarded(denied):
        done = run(data)
    assert [(failed.clip, failed.reason) for failed in done.failed] == [
        ("data/p3.png", "its caption cannot be written: Permission denied")
    ]
    assert run(data).failed == ()
    assert texts(data) == EXPECTED


def test_two_runs_at_once_are_refused(data: Path) -> None:
    with lock.hold(data / ".reelworks-captions.lock", doing="captioning"), refused("run-locked", "DATA"):
        run(data)


CHILD = """
import sys
from captioned import run
from pathlib import Path
run(Path(sys.argv[1]), command=sys.argv[2], workers=3)
"""


@pytest.mark.slow
def test_a_real_kill_at_random_moments(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", 40)
    command = "sh -c 'sleep 0.05; exec " + SED.replace("'", "'\"'\"'") + "'"
    path = [str(Path(__file__).parent), str(Path(media.__file__).parent), *sys.path]
    for wanted in (5, 17, 30):
        child = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{CHILD}", str(data), command]
        )
        until = time.monotonic() + 120
        while len(texts(data)) < wanted and child.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        child.kill()
        assert child.wait() == killing.KILLED
        assert all(text.endswith(".\n") for text in texts(data).values())
    run(data, workers=3)
    assert texts(data) == {f"p{i}.txt": f"A picture named p{i}.\n" for i in range(40)} | {"v.txt": EXPECTED["v.txt"]}


@pytest.mark.slow
def test_ctrl_c_ends_soon_and_keeps_what_is_done(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", 12)
    words = ["caption", str(data), "--command", "sh -c 'cat >/dev/null; sleep 0.3; echo A cat.'"]
    child = subprocess.Popen(
        [sys.executable, "-m", "reelworks", *words],
        # A shell in the background, such as that of these tests, ignores Ctrl-C, and so would its programs.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    until = time.monotonic() + 120
    while len(texts(data)) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert (child.returncode, time.monotonic() - began < 5) == (130, True)
    assert "stopped by Ctrl-C" in said
    assert "Traceback" not in said
    assert 3 <= len(texts(data)) < 13
    assert run(data, command="echo A dog.").kept >= 3


@pytest.mark.parametrize("number", [each for each in system.STOPS if each != signal.SIGINT])
@pytest.mark.slow
def test_a_signal_ends_the_commands_and_removes_their_frames(tmp_path: Path, number: signal.Signals) -> None:
    data, temporary = clips(tmp_path / "data"), tmp_path / "temporary"
    temporary.mkdir()
    words = ["caption", str(data), "--workers", "1", "--command", f"sh -c 'echo $$ > {tmp_path}/pid; sleep 300'"]
    child = subprocess.Popen(
        [sys.executable, "-m", "reelworks", *words],
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while (
        not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text(encoding="utf-8"))
        and time.monotonic() < until
    ):
        time.sleep(0.01)
    child.send_signal(number)
    assert child.wait(20) == -number
    assert not Path("/proc", (tmp_path / "pid").read_text(encoding="utf-8").strip()).exists()
    assert list(temporary.glob("reelworks-caption-*")) == []


def test_wrong_requests_are_refused(data: Path) -> None:
    def request(**options: object) -> CaptionRequest:
        return CaptionRequest(data=(str(data),), **options)

    with refused("which-captioner", "model"):
        request()
    with refused("which-captioner"):
        request(server="http://x", command="x")
    with refused("key-without-effect", "undo"):
        request(undo=True, command="x")
    with refused("key-without-effect", "key_env"):
        request(command="x", key_env="KEY")
    with refused("list-suffix", "list"):
        request(command="x", list=Path("new.txt"))
    with refused("command-invalid", "command"):
        request(command="'")
    with refused("command-invalid", "command"):
        run(data, command="/no/such/program")
    with refused("no-such-folder"):
        run(data / "none")
    with refused("data-given-twice", "DATA"):
        run((data, data))


def test_many_refusals_in_a_row_are_no_reason_to_give_up(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", 25)
    done = run(data, command="sed -E 's/.*p[0-9]+.png.*/I am sorry, no./; s/.*mp4.*/A cat./'")
    assert (done.captioned, len(done.failed)) == (1, 25)


def test_clips_that_failed_are_asked_for_last(tmp_path: Path) -> None:
    """The first 20 fail at each run, which is given up; the next one captions the others first."""
    data = clips(tmp_path / "data", 30)
    command = "sh -c 'grep -qE \"/p([012]|1[0-9]|2[0-6])[.]png\" && exit 1; echo A cat.'"
    for count in (0, 11):
        with refused("captioner-fails", "command"):
            run(data, command=command)
        assert len(texts(data)) == count


def test_a_captioner_that_always_fails_is_given_up(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", 30)
    with refused("captioner-fails", "command", says="ended with code 1"):
        run(data, command="false")
    assert texts(data) == {}
