"""Clips in tar archives are read where they are, as the same clips in files of their own."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import media_makers as media
import numpy as np
import pytest

from reelworks.core.shape import Shape
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import ScanResult, scan_sources
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import location
from reelworks.data.media.decode import Request, load

MEASURES = ("num_frames", "height", "width", "fps", "codec", "fingerprint", "size_bytes", "error")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Six clips and pictures with captions, one without, one damaged, as files."""
    folder = tmp_path / "files"
    media.write_video(folder / "a.mp4")
    media.write_video(folder / "b.webm", codec="libvpx-vp9")
    media.write_video(folder / "c.mkv", num_frames=5)
    media.write_video(folder / "d.avi", codec="mpeg4")
    media.write_picture(folder / "e.png")
    (folder / "f.mp4").write_bytes((folder / "a.mp4").read_bytes()[:700])
    for stem in "abce":
        (folder / f"{stem}.txt").write_text(f"caption of {stem}", encoding="utf-8")
    return folder


def pack(folder: Path, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(to, "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return to


def scan(folder: Path, catalog: Path) -> tuple[ScanResult, CatalogRows]:
    result = scan_sources([Source("d", folder)], catalog, workers=1)
    return result, Catalog.open(catalog).live()


def by_name(rows: CatalogRows) -> dict[str, dict[str, object]]:
    return {row["path"].rpartition("/")[2]: row for row in rows.to_table().to_pylist()}


@pytest.mark.parametrize("archive", ["000.tar", "1.tar/000.tar", "2.Tar/A.TAR"])
def test_members_are_scanned_and_decoded_as_files(archive: str, files: Path, tmp_path: Path) -> None:
    """A folder may be named as archives are, and a suffix be in capitals."""
    where = pack(files, tmp_path / "shards" / archive).relative_to(tmp_path / "shards")
    _, plain = scan(files, tmp_path / "one")
    result, packed = scan(tmp_path / "shards", tmp_path / "two")
    assert result.bad_files[0][0] == f"{tmp_path}/shards/{where}/f.mp4"
    expected, found = by_name(plain), by_name(packed)
    assert list(found)
    assert found.keys() == expected.keys()
    for name, row in found.items():
        assert {key: row[key] for key in (*MEASURES, "caption")} == {
            key: expected[name][key] for key in (*MEASURES, "caption")
        }, name
    assert found["a.mp4"]["path"] == f"{where}/a.mp4"
    for row in np.flatnonzero(packed.readable).tolist():
        request = Request(packed.file(row), bool(packed.is_image[row]), Shape(1, 16, 16))
        own = Request(files / Path(packed.path[row].as_py()).name, request.is_image, request.shape)
        assert np.array_equal(load(request), load(own))


@pytest.mark.parametrize("name", ["000.tar", "1.tar/000.tar", "2.Tar/A.TAR"])
def test_a_list_names_members(name: str, files: Path, tmp_path: Path) -> None:
    """As in the catalog of their folder; a caption of a list is that of its column, or else the member's."""
    archive = pack(files, tmp_path / "shards" / name).relative_to(tmp_path / "shards")
    (tmp_path / "shards" / "bad.tar").write_bytes(b"no archive" * 100)
    wanted = [f"{archive}/{name}" for name in ("c.mkv", "e.png", "f.mp4")]
    named = "\n".join(["path", *wanted, f"{archive}/none.png", "bad.tar/a.png", "no.tar/a.png"])
    (tmp_path / "shards" / "meta.csv").write_text(named, encoding="utf-8")
    whole = by_name(scan(tmp_path / "shards", tmp_path / "whole")[1])
    scan_sources([Source.from_path(tmp_path / "shards" / "meta.csv", "d")], tmp_path / "listed", workers=1)
    rows = {row["path"]: row for row in Catalog.open(tmp_path / "listed").live().to_table().to_pylist()}
    for path in wanted:
        same = whole[path.rpartition("/")[2]]
        assert {k: v for k, v in rows[path].items() if k != "ordinal"} == {
            k: v for k, v in same.items() if k != "ordinal"
        }
    assert [rows[path]["error"] for path in (f"{archive}/none.png", "bad.tar/a.png", "no.tar/a.png")] == [
        "no such file",
        "not a tar archive: invalid header",
        "no such file: there is no no.tar",
    ]


def test_webdataset_json_holds_the_caption(tmp_path: Path) -> None:
    clip = media.write_picture(tmp_path / "x.png").read_bytes()
    members = {
        "one.png": clip, "one.json": json.dumps({"width": 4, "caption": " a cat "}).encode(),
        "two.png": clip, "two.json": b"no json",
        "three.crop.png": clip, "three.json": json.dumps({"text": "a dog"}).encode(), "three.txt": b"a wolf",
        "sub/one.png": clip, "cls.cls": b"7",
    }  # fmt: skip
    write_members(tmp_path / "s" / "a.tar", members)
    result, rows = scan(tmp_path / "s", tmp_path / "catalog")
    captions = {row["path"]: row["caption"] for row in rows.to_table().to_pylist()}
    assert captions == {
        "a.tar/one.png": "a cat", "a.tar/two.png": None, "a.tar/three.crop.png": "a wolf", "a.tar/sub/one.png": None,
    }  # fmt: skip
    assert ".cls (1)" in result.notes[0]


def test_a_caption_that_may_be_that_of_several_clips_is_none_of_them(tmp_path: Path) -> None:
    """Up to its first dot, a name may be that of one clip and one caption; what else has it is told."""
    clip = media.write_picture(tmp_path / "x.png").read_bytes()
    members = {
        "one.rgb.png": clip, "one.txt": b"a cat",
        "two.rgb.png": clip, "two.crop.png": clip, "two.txt": b"a dog",
        "three.rgb.png": clip, "three.a.txt": b"a wolf", "three.b.txt": b"a fox",
    }  # fmt: skip
    write_members(tmp_path / "s" / "a.tar", members)
    result, rows = scan(tmp_path / "s", tmp_path / "catalog")
    captions = {row["path"]: row["caption"] for row in rows.to_table().to_pylist()}
    assert captions == {
        "a.tar/one.rgb.png": "a cat", "a.tar/two.rgb.png": None, "a.tar/two.crop.png": None, "a.tar/three.rgb.png": None,
    }  # fmt: skip
    assert any("3 clips have no caption of the same name" in note for note in result.notes)


def write_members(to: Path, members: dict[str, bytes]) -> None:
    to.parent.mkdir(exist_ok=True)
    with tarfile.open(to, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def test_a_hard_link_is_the_clip_that_it_was_packed_as(files: Path, tmp_path: Path) -> None:
    """A packer writes a file of two names once; what it links to may be replaced by a later member of that name."""
    (files / "linked.mp4").hardlink_to(files / "a.mp4")
    (files / "linked.txt").hardlink_to(files / "a.txt")
    tar = pack(files, tmp_path / "s" / "000.tar")
    with tarfile.open(tar, "a") as archive:
        assert [member.name for member in archive if member.islnk()] == ["linked.mp4", "linked.txt"]
        archive.add(files / "c.mkv", "a.mp4")
    with tarfile.open(tar) as archive:
        content = {member.name: archive.extractfile(member).read() for member in archive}
    _, rows = scan(tmp_path / "s", tmp_path / "catalog")
    of_row = {row["path"].rpartition("/")[2]: i for i, row in enumerate(rows.to_table().to_pylist())}
    for name in ("linked.mp4", "a.mp4"):
        assert location.opened(rows.file(of_row[name])).read() == content[name]
    assert by_name(rows)["linked.mp4"]["caption"] == "caption of a"
    assert content["a.mp4"] != content["linked.mp4"]


def test_hostile_members_are_rows_with_reasons(tmp_path: Path) -> None:
    clip = media.write_picture(tmp_path / "x.png").read_bytes()
    write_members(tmp_path / "s" / "a.tar", {"../../evil.png": clip, "/etc/x.png": clip, "./good.png": clip})
    with tarfile.open(tmp_path / "s" / "a.tar", "a") as archive:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / "s" / "b.tar").write_bytes(b"not an archive" * 100)
    with tarfile.open(tmp_path / "s" / "c.tar", "w:gz") as archive:
        archive.add(tmp_path / "x.png", "x.png")
    whole = (tmp_path / "s" / "a.tar").read_bytes()
    _, rows = scan(tmp_path / "s", tmp_path / "catalog")
    errors = {row["path"]: row["error"] for row in rows.to_table().to_pylist()}
    assert errors.pop("a.tar/good.png") is None
    assert errors == {
        "a.tar/evil.png": "the archive names it '../../evil.png', outside of its own folder",
        "a.tar/etc/x.png": "the archive names it '/etc/x.png', outside of its own folder",
        "a.tar/link.png": "not a regular file in the archive",
        "b.tar": "not a tar archive: invalid header",
        "c.tar": "not a tar archive: it is compressed, so clips cannot be read in place; unpack it",
    }
    (tmp_path / "s" / "a.tar").write_bytes(whole[: len(clip) // 2 + 512])
    _, rows = scan(tmp_path / "s", tmp_path / "catalog")
    cut = [row for row in rows.to_table().to_pylist() if row["path"].startswith("a.tar")]
    assert all(row["error"] is not None for row in cut)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda whole, at: whole[: at + 150] + b"\xff" + whole[at + 151 :], "the header at byte {at:,} is damaged"),
        (lambda whole, at: whole[:at] + bytes(512) + whole[at + 512 :], "behind its end at byte {at:,}"),
        (lambda whole, at: whole[: at + 100], "the header at byte {at:,} is damaged"),
        (lambda whole, at: whole[: at + 530], "bytes by its header, which are not there"),
        (lambda whole, at: whole[:at], "it ends at byte {at:,} without the mark of its end"),
        (lambda whole, at: whole[:at] + bytes(1024) + whole, "behind its end at byte {at:,}, there is another archive"),
    ],
    ids=["header", "hole", "cut in a header", "cut in a member", "cut before a header", "two archives"],
)
def test_damage_within_an_archive_is_told_and_keeps_the_clips_before_it(
    damage: Callable[[bytes, int], bytes], told: str, tmp_path: Path
) -> None:
    """The places of the members are those that tarfile tells of the whole archive."""
    clip = media.write_picture(tmp_path / "x.png").read_bytes()
    tar = tmp_path / "s" / "a.tar"
    write_members(tar, {f"{i}.png": clip for i in range(5)})
    with tarfile.open(tar) as archive:
        at = {member.name: member.offset for member in archive}["3.png"]
    scan(tmp_path / "s", tmp_path / "catalog")
    tar.write_bytes(damage(tar.read_bytes(), at))
    result, rows = scan(tmp_path / "s", tmp_path / "catalog")
    errors = {row["path"]: row["error"] for row in rows.to_table().to_pylist()}
    assert told.format(at=at) in errors.pop("a.tar")
    assert errors == {f"a.tar/{i}.png": None for i in range(3)}
    assert (result.unchanged + result.changed, result.removed, result.bad) == (3, 2, 1)


def test_what_is_hidden_in_an_archive_is_no_clip_as_in_a_folder(tmp_path: Path) -> None:
    """A Mac packs a file of its own beside each clip. A list may still name what it likes."""
    clip = media.write_picture(tmp_path / "x.png").read_bytes()
    names = ("a.png", "._a.png", "._a.txt", ".DS_Store", "__MACOSX/._a.png", ".hidden/b.png", "./c/d.png", "e.f.png")
    write_members(tmp_path / "s" / "a.tar", dict.fromkeys(names, clip))
    with tarfile.open(tmp_path / "s" / "a.tar") as archive:
        archive.extractall(tmp_path / "plain" / "a.tar", filter="data")
    _, packed = scan(tmp_path / "s", tmp_path / "catalog")
    _, plain = scan(tmp_path / "plain", tmp_path / "unpacked")
    assert {row["path"]: row["error"] for row in packed.to_table().to_pylist()} == {
        row["path"]: row["error"] for row in plain.to_table().to_pylist()
    }
    (tmp_path / "s" / "meta.csv").write_text("path\na.tar/.hidden/b.png\n", encoding="utf-8")
    result = scan_sources([Source.from_path(tmp_path / "s" / "meta.csv", "l")], tmp_path / "catalog", workers=1)
    assert (result.found, result.bad) == (1, 0)


@pytest.mark.parametrize("zeros", [512, 1024, 1 << 21])
def test_an_archive_ends_with_zeros_alone(zeros: int, tmp_path: Path) -> None:
    """However many its writer has added."""
    clip = media.write_picture(tmp_path / "x.png").read_bytes()
    write_members(tmp_path / "s" / "a.tar", {"a.png": clip})
    whole = (tmp_path / "s" / "a.tar").read_bytes().rstrip(b"\0")
    (tmp_path / "s" / "a.tar").write_bytes(whole + bytes(-len(whole) % 512 + zeros))
    result, rows = scan(tmp_path / "s", tmp_path / "catalog")
    assert (result.bad, rows.path.to_pylist()) == (0, ["a.tar/a.png"])


def test_an_archive_that_is_packed_anew_keeps_its_clips(files: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    pack(files, shards / "000.tar")
    _, before = scan(shards, tmp_path / "catalog")
    again, _ = scan(shards, tmp_path / "catalog")
    assert (again.new, again.changed) == (0, 0)
    names = sorted(files.iterdir())
    random.Random(0).shuffle(names)
    with tarfile.open(shards / "000.tar", "w") as archive:
        for file in names:
            archive.add(file, file.name)
    _, after = scan(shards, tmp_path / "catalog")
    assert sorted(after.uid) == sorted(before.uid)
    row = [path.as_py() for path in after.path].index("000.tar/c.mkv")
    assert len(load(Request(after.file(row), False, Shape(5, 16, 16)))) == 5


@pytest.mark.parametrize("how", ["list", "folder", "cut", "killed"])
def test_a_scan_finds_where_members_are_though_size_and_time_of_their_archive_are_as_before(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it is packed in another order, and files have the time of an image or of no build in particular."""
    shards = tmp_path / "shards"
    clips = {f"{n}.mp4": media.write_video(tmp_path / f"{n}.mp4", num_frames=n).read_bytes() for n in (5, 9, 14)}
    most = max(map(len, clips.values())) + 8
    sizes = {name: most - len(data) for name, data in clips.items()}
    clips = {
        name: data + sizes[name].to_bytes(4, "big") + b"free" + bytes(sizes[name] - 8) for name, data in clips.items()
    }
    (tmp_path / "meta.csv").write_text("path,text\n" + "".join(f"a.tar/{n},{n}\n" for n in clips), encoding="utf-8")
    source = Source.from_path(tmp_path / "meta.csv", "d", root=shards) if how == "list" else Source("d", shards)
    source = replace(source, cut="0.25s" if how == "cut" else "")

    def scanned(catalog: str) -> dict[str, dict[str, object]]:
        scan_sources([source], tmp_path / catalog, workers=1)
        rows = Catalog.open(tmp_path / catalog).live().to_table().to_pylist()
        return {f"{row['path']} {row['first_frame']}": row | {"ordinal": 0} for row in rows}

    write_members(shards / "a.tar", clips)
    os.utime(shards / "a.tar", (0, 0))
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        if how == "killed":
            patch.setattr(Catalog, "append", Mock(side_effect=KeyboardInterrupt))
        scanned("catalog")
    # The same bytes by other names, as where names are numbers.
    write_members(shards / "a.tar", dict(zip(reversed(clips), clips.values(), strict=True)))
    os.utime(shards / "a.tar", (0, 0))
    assert scanned("catalog") == scanned("anew")


def test_a_range_is_a_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4
    (tmp_path / "x.tar").write_bytes(data)
    inside = location.Location(str(tmp_path / "x.tar"), "x.tar/y.bin", 100, 300)
    with location.opened(inside) as file:
        assert (file.read(3), file.seek(-5, 2), file.read(), file.read()) == (data[100:103], 295, data[395:400], b"")
        assert file.seek(0) == 0
        assert file.read() == data[100:400]
