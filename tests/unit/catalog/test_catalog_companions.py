"""A clip's companion is the file of its path and name in another folder; what does not fit it is told apart."""

from __future__ import annotations

import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pytest
import sound_clips
from catalog_rows import rows
from hypothesis import given
from hypothesis import strategies as st
from media_makers import write, write_picture, write_video
from refused import refused

from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store import companions, summary
from reelworks.data.catalog.store.companions import CompanionMatches, Problem
from reelworks.data.catalog.store.store import Catalog


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Clips of eight frames at 24 a second and pictures, each with a companion of another kind or none."""
    root = tmp_path_factory.mktemp("shots")
    for name in ("same", "still", "short", "slow", "square", "broken", "none", "twice", "long", "deep/same"):
        write_video(root / "clips" / f"{name}.mp4", num_frames=8)
    for name in ("picture", "moves"):
        write_picture(root / "clips" / f"{name}.png", size=(64, 48))
    beside = root / "depth"
    write_video(beside / "same.mkv", num_frames=8)
    write_video(beside / "deep/same.mp4", num_frames=8, size=(32, 24))
    write_picture(beside / "still.jpg", size=(128, 96))
    write_video(beside / "short.mp4", num_frames=7)
    write_video(beside / "slow.mp4", num_frames=8, rate=12)
    write_video(beside / "square.mp4", num_frames=8, size=(48, 48))
    (beside / "broken.mp4").write_bytes(b"nothing")
    write_video(beside / "twice.mp4", num_frames=8)
    write_picture(beside / "twice.png", size=(64, 48))
    write_video(beside / "long.mp4", num_frames=11)
    write_picture(beside / "picture.webp", size=(64, 48))
    write_video(beside / "moves.mp4", num_frames=8)
    return root


def found(root, catalog):
    sources = [Source("shots", root / "clips"), Source("shots:control", root / "depth")]
    scan_sources(sources, catalog, workers=2)
    live = Catalog.open(catalog).live()
    clips = companions.without(live)
    return clips, companions.find(clips, live, "control", {"shots": str(root / "depth")})


WORDS = {
    "none": "no control {depth}/none.*",
    "twice": "is not the only file of that name",
    "broken": "broken.mp4 is unusable: ",
    "short": "short.mp4 has 7 frames, the clip 8",
    "slow": "slow.mp4 has 12 frames a second, the clip 24",
    "square": "square.mp4 is 48 × 48 pixels, the clip 64 × 48",
    "moves": "moves.mp4 is a video, but the clip is a picture",
}


def test_what_fits_is_found_and_what_does_not_is_said(folder, tmp_path):
    """Suffix and size may differ, a picture may stand for a clip; all else has its problem, in numbers."""
    clips, made = found(folder, tmp_path / "catalog")
    assert len(clips) == 12
    good = {}
    for i, path in enumerate(clips.path.to_pylist()):
        stem = path.rpartition(".")[0]
        if made.problem[i] == Problem.NONE:
            good[stem] = made.rows.path[int(made.row[i])].as_py()
        else:
            assert WORDS[stem].format(depth=folder / "depth") in made.explain(clips, i)
    assert good == {
        "same": "same.mkv", "deep/same": "deep/same.mp4", "still": "still.jpg", "long": "long.mp4",
        "picture": "picture.webp",
    }  # fmt: skip
    assert {Problem(p) for p in made.problem} == set(Problem) - {
        Problem.NOTHING_SHOWN,
        Problem.NOT_ANOTHER,
    }  # of sounds, and of pairs


def test_ranges_of_a_video_whose_rate_varies_fit_its_copy(tmp_path):
    """The mean rate of a range is none of the whole file."""
    frames = [np.full((48, 64, 3), 5 * i, np.uint8) for i in range(40)]
    times = [100 * i for i in range(20)] + [2000 + 150 * i for i in range(20)]
    for place in ("clips", "depth"):
        write(tmp_path / place / "a.mkv", frames, times_ms=times)
    sources = [Source("shots", tmp_path / "clips", cut="1.0s"), Source("shots:control", tmp_path / "depth")]
    scan_sources(sources, tmp_path / "catalog", workers=1)
    live = Catalog.open(tmp_path / "catalog").live()
    clips = companions.without(live)
    made = companions.find(clips, live, "control", {"shots": str(tmp_path / "depth")})
    assert len(set(clips.fps.round(3).tolist())) > 1
    assert set(made.problem.tolist()) == {Problem.NONE}


def test_a_range_needs_a_companion_that_lasts_to_its_end(tmp_path):
    """As many frames as the range has are not enough."""
    write_video(tmp_path / "clips" / "a.mp4", num_frames=24)
    write_video(tmp_path / "depth" / "a.mp4", num_frames=18)
    sources = [Source("shots", tmp_path / "clips", cut="0.5s"), Source("shots:control", tmp_path / "depth")]
    scan_sources(sources, tmp_path / "catalog", workers=1)
    live = Catalog.open(tmp_path / "catalog").live()
    clips = companions.without(live)
    made = companions.find(clips, live, "control", {"shots": str(tmp_path / "depth")})
    told = {int(first): Problem(found) for first, found in zip(clips.first_frame, made.problem, strict=True)}
    assert told == {0: Problem.NONE, 12: Problem.SHORTER}


def test_a_clip_keeps_its_identity(folder, tmp_path):
    """Rows of clips are the same with companions as without, but for their permanent numbers."""
    clips, _ = found(folder, tmp_path / "with")
    scan_sources([Source("shots", folder / "clips")], tmp_path / "without", workers=1)
    alone = Catalog.open(tmp_path / "without").live()
    assert sorted(clips.uid.tolist()) == sorted(alone.uid.tolist())


def test_companions_among_the_clips_are_refused(tmp_path):
    """They would be trained as clips."""
    with refused("companion-inside-dataset", "dataset.loss_mask"):
        companions.sources(Source("shots", tmp_path), {"loss_mask": str(tmp_path / "masks")})
    beside = {"loss_mask": f"{tmp_path}-masks"}
    assert [s.name for s in companions.sources(Source("shots", tmp_path), beside)] == ["shots:loss_mask"]
    listed = Source("shots", tmp_path, tmp_path / "meta.csv")  # which names no mask as a clip
    assert companions.sources(listed, {"loss_mask": str(tmp_path / "masks")})


def test_names_that_look_alike_are_one_unless_each_has_a_companion_of_its_own() -> None:
    """As macOS writes them, and as others do."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"

    def match(wanted: list[str], stems: list[str]) -> list[int]:
        return companions._match(*(pa.array(names, pa.large_string()) for names in (wanted, stems)))[0].tolist()

    assert match(["a", composed], [decomposed, "b", "a"]) == [2, 0]
    assert match([decomposed], ["b", composed]) == [1]
    assert match([composed, decomposed], [decomposed, composed]) == [1, 0]
    assert match([composed, decomposed], [decomposed]) == [-1, 0]


WORD = st.text(alphabet="ab", min_size=1, max_size=2)


@given(st.lists(WORD), st.lists(WORD))
def test_matching_is_what_a_dictionary_does(wanted, stems):
    """Each is found where it stands, -1 where it does not, and said to be several where it is."""
    place, several = companions._match(pa.array(wanted, pa.large_string()), pa.array(stems, pa.large_string()))
    assert [stems[i] if i >= 0 else None for i in place] == [w if w in stems else None for w in wanted]
    assert several.tolist() == [stems.count(w) > 1 for w in wanted]
    assert place.dtype == np.int64


def test_as_many_sources_as_a_clip_needs_at_least_are_enough():
    """A clip with fewer is told of each that it lacks."""
    clips, found = rows({}, {}, {}), []
    for has in (np.array([0, 1, -1]), np.array([0, -1, -1])):
        problem = np.where(has < 0, Problem.MISSING, Problem.NONE).astype(np.int8)
        found.append(CompanionMatches("source", {}, clips, has, problem, np.zeros(3, np.int64)))
    companions.excuse(clips, found, {"data": 1})
    assert [each.problem.tolist() for each in found] == [[Problem.NONE, Problem.NONE, Problem.MISSING]] * 2


@pytest.mark.parametrize(("kind", "problem"), [("rejected", Problem.NOT_ANOTHER), ("control", Problem.NONE)])
def test_a_rejected_clip_is_another_one(tmp_path, kind, problem):
    """Of a pair of equal ones nothing is learnt: the loss of the preference stays log 2."""
    for name in ("clips", "worse"):
        (tmp_path / name).mkdir()
        write_picture(tmp_path / name / "same.png", 7)
        write_picture(tmp_path / name / "other.png", ord(name[0]))
    sources = [Source("shots", tmp_path / "clips"), Source(f"shots:{kind}", tmp_path / "worse")]
    scan_sources(sources, tmp_path / "catalog", workers=1)
    live = Catalog.open(tmp_path / "catalog").live()
    clips = companions.without(live)
    made = companions.find(clips, live, kind, {"shots": str(tmp_path / "worse")})
    index = clips.path.to_pylist().index("same.png")
    assert (made.problem[index], made.problem[1 - index]) == (problem, Problem.NONE)
    if problem != Problem.NONE:
        assert made.explain(clips, index).endswith("same.png is the clip itself, so that nothing is preferred")


def test_sounds_are_companions_of_sources_alone(folder, tmp_path):
    """They are read in folders and archives of sources. Beside clips and controls they are named as what is not read."""
    root = tmp_path / "heard"
    root.mkdir()
    sound_clips.write_sound(root / "same.wav", np.full((4000, 1), 500, np.int16), 16_000)
    (root / "short.mp3").write_text("no sound", encoding="utf-8")
    with tarfile.open(root / "more.tar", "w") as archive:
        archive.add(root / "same.wav", "still.wav")
    (tmp_path / "depth").mkdir()
    shutil.copytree(root, tmp_path / "depth/heard")
    write_picture(tmp_path / "depth/picture.png", size=(64, 48))
    datasets = {"shots": folder / "clips", "shots:source-2": root, "shots:control": tmp_path / "depth"}
    scan_sources([Source(*each) for each in datasets.items()], tmp_path / "catalog", workers=1)
    live = Catalog.open(tmp_path / "catalog").live()
    heard = live.take(live.is_sound & live.readable)
    assert set(heard.path.to_pylist()) == {"same.wav", "more.tar/still.wav"}
    assert heard.duration_seconds.tolist() == pytest.approx([0.25, 0.25])
    unread = live.take(live.of_datasets(["shots:control"]) & ~live.is_image)
    assert sorted(unread.error.to_pylist()) == [f"sound without pictures: {kind}" for kind in (".mp3", ".wav", ".wav")]
    assert summary.summarise(live).clips == len(live) - 2
    clips = companions.without(live)
    for sounds in (False, True):
        found = companions.find(clips, live, "source-2", {"shots": str(root)}, own_sizes=True, sounds=sounds)
        assert [(found.problem == each).sum() for each in (Problem.NONE, Problem.UNREADABLE)] == [sounds, sounds]
