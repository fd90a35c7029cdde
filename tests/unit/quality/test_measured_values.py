"""Measures of drawn pictures and clips tell what was drawn, after real encoding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import drawn_scenes as drawn
import numpy as np
import pytest
from PIL import Image

from reelworks.annexes.quality import registry, sampling
from reelworks.annexes.quality.measure import SampledClip
from reelworks.annexes.quality.motion import Cuts, Movement, changes
from reelworks.annexes.quality.sampling import MeasureRequest
from reelworks.annexes.quality.sound import SoundLevel
from reelworks.data.catalog.store import measured_columns
from reelworks.data.media import probe

HEIGHT, WIDTH, FPS = 180, 320, 24


def values(path: Path, *names: str, first: int = 0, frames: int | None = None) -> dict[str, float]:
    """Measure a file, and return the values by the names of columns."""
    p = probe.probe(path)
    count = p.num_frames if frames is None else frames
    clip = SampledClip(path, p.kind == "image", p.height, p.width, count, p.fps)
    request = MeasureRequest(clip, first, bool(p.sound), tuple(names or registry.names()))
    found = sampling.measure(request)
    assert not found.problems
    return {name.partition(":")[2]: value for name, value in found.values.items() if isinstance(value, float)}


@pytest.fixture(scope="module")
def picture() -> drawn.Frame:
    return drawn.scene(np.random.default_rng(3), 360, 640)


@pytest.fixture(scope="module")
def wide() -> drawn.Frame:
    return drawn.scene(np.random.default_rng(4), HEIGHT, 3 * WIDTH)


def clip(folder: Path, frames: Sequence[drawn.Frame], **options: object) -> Path:
    return drawn.write_clip(folder / "clip.mp4", frames, fps=FPS, **options)


def test_sharpness_is_the_share_of_differences_that_a_mean_over_nine_pixels_removes(tmp_path: Path) -> None:
    """By the definition, along rows and columns of a picture that is measured whole; steps of one level are no sharpness."""
    luma = np.random.default_rng(5).integers(0, 255, (100, 100)).astype(np.uint8)
    found = values(drawn.write_picture(tmp_path / "a.png", np.repeat(luma[..., None], 3, axis=2)), "sharpness")[
        "sharpness"
    ]
    shares = []
    for rows in (luma.astype(np.float64), luma.T.astype(np.float64)):
        fine = np.abs(np.diff(rows))[:, 4:-4]
        means = np.stack([np.convolve(row, np.full(9, 1 / 9), mode="valid") for row in rows])
        removed = np.maximum(fine - np.abs(np.diff(means)), 0)
        shares.append(removed[fine > 1].sum() / fine.sum())
    assert found == pytest.approx(min(shares), abs=0.002)


def test_blur_makes_sharpness_fall_at_any_resolution(picture: drawn.Frame, tmp_path: Path) -> None:
    found = []
    for radius in (0, 1, 2, 4):
        file = drawn.write_picture(tmp_path / "a.jpg", drawn.blurred(picture, radius), quality=92)
        found.append(values(file, "sharpness")["sharpness"])
    assert found[0] > 0.6
    assert all(a - b > 0.05 for a, b in itertools.pairwise(found))
    large = drawn.scene(np.random.default_rng(3), 720, 1280)  # blurred by less than a pixel of the measured size
    whole = values(drawn.write_picture(tmp_path / "b.jpg", large, quality=92), "sharpness")["sharpness"]
    soft = values(drawn.write_picture(tmp_path / "c.jpg", drawn.blurred(large, 1)), "sharpness")["sharpness"]
    assert whole - soft < 0.8 * (found[0] - found[1])


@pytest.mark.parametrize(
    "deviation", [10, *(pytest.param(n, marks=pytest.mark.slow(reason="pictures of more contrast")) for n in (25, 60))]
)
@pytest.mark.slow
def test_no_blur_is_so_strong_that_sharpness_rises_again(tmp_path: Path, deviation: int) -> None:
    scene = drawn.scene(np.random.default_rng(2), 540, 720).astype(np.float64)
    plain = np.clip(128 + (scene - scene.mean()) / scene.std() * deviation, 0, 255).round().astype(np.uint8)
    found = [
        values(drawn.write_picture(tmp_path / "a.png", drawn.blurred(plain, radius)), "sharpness")["sharpness"]
        for radius in (0, 1, 2, 4, 8, 16, 32, 64)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.6
    assert found[-1] < 0.05
    slope = np.broadcast_to(np.linspace(60, 180, 720).round().astype(np.uint8)[:, None], (540, 720, 3))
    assert values(drawn.write_picture(tmp_path / "b.png", slope), "sharpness") == {"sharpness": 0.0}


def test_exposure_tells_the_share_that_was_cut_off(picture: drawn.Frame, tmp_path: Path) -> None:
    for shift, column in ((-70, "clipped_dark"), (130, "clipped_bright")):
        shifted = np.clip(picture.astype(np.int64) + shift, 0, 255).astype(np.uint8)
        luma = shifted @ np.array([0.299, 0.587, 0.114])
        found = values(drawn.write_picture(tmp_path / "a.png", drawn.bordered(shifted, 40, 40, 0, 0)), "exposure")
        share = np.mean(luma < 3.5) if shift < 0 else np.mean(luma >= 251.5)
        assert found[column] == pytest.approx(share, abs=0.02)
        assert share > 0.05
        assert found["brightness"] == pytest.approx(luma.mean() / 255, abs=0.01)


def test_noise_is_its_standard_deviation(picture: drawn.Frame, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for deviation in (6.0, 15.0):
        file = drawn.write_picture(tmp_path / "a.png", drawn.noisy(rng, picture, deviation))
        assert values(file, "noise")["noise"] == pytest.approx(deviation, rel=0.2)
    assert values(drawn.write_picture(tmp_path / "b.png", drawn.blurred(picture, 1)), "noise")["noise"] < 2


@pytest.mark.parametrize("offset", [0, 3])
def test_blocks_are_found_wherever_they_begin(picture: drawn.Frame, tmp_path: Path, offset: int) -> None:
    from PIL import Image

    coded = drawn.write_picture(tmp_path / "a.jpg", picture, quality=10)
    cut = np.asarray(Image.open(coded))[offset:, offset:]
    assert values(drawn.write_picture(tmp_path / "b.png", cut), "blockiness")["blockiness"] > 0.5
    assert values(drawn.write_picture(tmp_path / "c.png", picture), "blockiness")["blockiness"] < 0.1


def test_colours(picture: drawn.Frame, tmp_path: Path) -> None:
    grey = np.repeat(picture.mean(axis=-1, keepdims=True), 3, axis=-1).astype(np.uint8)
    found = [values(drawn.write_picture(tmp_path / "a.png", p), "colourfulness") for p in (grey, picture)]
    assert found[0]["colourfulness"] < 1
    assert found[1]["colourfulness"] > 20


@pytest.mark.parametrize("sides", [(22, 26, 0, 0), (0, 0, 40, 38), (10, 12, 20, 24), (0, 0, 0, 0)])
def test_borders_leave_the_picture(wide: drawn.Frame, tmp_path: Path, sides: tuple[int, int, int, int]) -> None:
    shown = [drawn.bordered(frame, *sides) for frame in drawn.pan(wide, 6, HEIGHT, WIDTH, 2.0)]
    found = values(clip(tmp_path, shown), "borders")
    assert list(found.values()) == pytest.approx(sides, abs=1)


def test_a_dark_picture_has_no_borders(tmp_path: Path) -> None:
    night = np.zeros((120, 200, 3), dtype=np.uint8)
    night[50:60, 90:100] = 200  # a moon
    assert set(values(drawn.write_picture(tmp_path / "a.png", night), "borders").values()) == {0.0}
    assert set(values(drawn.write_picture(tmp_path / "b.png", night * 0), "borders").values()) == {0.0}


@pytest.mark.parametrize("night", ["even", "of texture", "black"])
def test_the_dark_around_something_bright_belongs_to_the_picture(tmp_path: Path, night: str) -> None:
    """Whatever is bright: darkness that is not black or not even is no border, nor is what leaves nearly no picture."""
    scene = np.random.default_rng(2).integers(
        *{"even": (6, 7), "of texture": (0, 13), "black": (0, 1)}[night], (240, 320, 3)
    )
    bright = slice(100, 140), slice(150, 190)
    scene[(slice(60, 180), slice(180, 300)) if night == "of texture" else bright] += 230
    file = drawn.write_picture(tmp_path / "a.png", scene.astype(np.uint8))
    found = values(file, "borders", "exposure")
    luma = np.asarray(Image.open(file).convert("L")).astype(np.float64)
    assert {found[f"border_{side}"] for side in ("top", "bottom", "left", "right")} == {0.0}
    assert found["brightness"] == pytest.approx(luma.mean() / 255, abs=1e-4)
    assert found["clipped_dark"] == pytest.approx((luma <= 3).mean(), abs=1e-4)


@pytest.mark.parametrize(("level", "crf"), [(0, 38), (16, 20)])
def test_borders_of_coarse_coding_and_of_a_wrong_range_are_found(
    wide: drawn.Frame, tmp_path: Path, level: int, crf: int
) -> None:
    shown = [drawn.bordered(frame, 40, 32, 0, 0) for frame in drawn.pan(wide, 4, HEIGHT, WIDTH, 2.0)]
    for frame in shown:
        frame[:40] = frame[-32:] = level
    found = values(clip(tmp_path, shown, crf=crf), "borders")
    assert list(found.values()) == pytest.approx([40, 32, 0, 0], abs=2)


def test_motion_is_the_speed_of_a_pan_and_independent_of_resolution(tmp_path: Path) -> None:
    for height, width, step in ((180, 320, 1.5), (360, 640, 3.0)):
        shown = drawn.pan(drawn.scene(np.random.default_rng(9), height, 2 * width), 12, height, width, step)
        found = values(clip(tmp_path, shown), "motion")
        assert found["motion"] == pytest.approx(100 * step * FPS / height, rel=0.35)
        assert found["static"] == 0.0


def test_still_frames_are_counted_also_with_noise_of_coding(wide: drawn.Frame, tmp_path: Path) -> None:
    moving = drawn.pan(wide, 13, HEIGHT, WIDTH, 4.0)
    shown = moving[:7] + [moving[6]] * 12 + moving[7:]
    found = values(clip(tmp_path, shown), "motion")
    assert found["static"] == pytest.approx(12 / (len(shown) - 1), abs=0.05)
    assert values(clip(tmp_path, [moving[0]] * 10), "motion") == {"motion": 0.0, "static": 1.0}


def test_cuts_and_flashes_are_told_apart(wide: drawn.Frame, tmp_path: Path) -> None:
    other = drawn.scene(np.random.default_rng(5), HEIGHT, 3 * WIDTH)
    shown = [*drawn.pan(wide, 14, HEIGHT, WIDTH, 3.0), *drawn.pan(other, 12, HEIGHT, WIDTH, 12.0)]
    shown += drawn.pan(wide, 10, HEIGHT, WIDTH, 1.0, first_px=300.0)
    plain = values(clip(tmp_path, shown), "cuts", "motion")
    assert (plain["cuts"], plain["flashes"]) == (2.0, 0.0)
    for at, frames in ((5, 1), (18, 3)):
        for i in range(at, at + frames):
            shown[i] = np.clip(shown[i].astype(np.int64) + 110, 0, 255).astype(np.uint8)
    found = values(clip(tmp_path, shown), "cuts", "motion")
    assert (found["cuts"], found["flashes"]) == (2.0, 2.0)
    assert found["motion"] == pytest.approx(plain["motion"], rel=0.1)


@pytest.mark.parametrize("held", [(2,), (3,), (2, 3)])
def test_frames_that_are_held_change_neither_cuts_nor_motion(wide: drawn.Frame, held: tuple[int, ...]) -> None:
    """As in drawings on twos and threes, and in films within files of 60 frames a second."""
    shown = [*drawn.pan(wide, 20, HEIGHT, WIDTH, 6.0), *drawn.pan(wide[::-1, ::-1], 20, HEIGHT, WIDTH, 4.0)]
    runs = np.stack([frame[::2, ::2].mean(axis=-1) for frame in shown]).astype(np.float32)
    times = np.resize(held, len(runs))
    found = []
    for frames, fps in ((runs, 24.0), (np.repeat(runs, times, axis=0), 24.0 * times.mean())):
        is_next = np.ones(len(frames) - 1, dtype=np.bool_)
        sampled = SampledClip(Path("a"), False, 1, 1, len(frames), fps, runs=frames, is_next=is_next)
        found.append((*Cuts().values(sampled), Movement().values(sampled)[0]))
    assert found[0][:2] == found[1][:2] == (1.0, 0.0)
    assert found[1][2] == pytest.approx(found[0][2], rel=0.05)


@pytest.mark.parametrize(("held", "is_new"), [(4, [True, False, False, False]), (5, [True] * 5)])
def test_a_picture_is_held_for_a_sixth_of_a_second_at_most(wide: drawn.Frame, held: int, is_new: list[bool]) -> None:
    """One that is shown for longer stands still, and all of its frames count."""
    runs = np.stack([frame[::2, ::2].mean(axis=-1) for frame in drawn.pan(wide, 6, HEIGHT, WIDTH, 6.0)])
    frames = np.repeat(runs.astype(np.float32), held, axis=0)
    is_next = np.ones(len(frames) - 1, dtype=np.bool_)
    sampled = SampledClip(Path("a"), False, 1, 1, len(frames), 24.0, runs=frames, is_next=is_next)
    assert changes(sampled).is_new.tolist() == is_new * 6


@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize("level", [16, 250])
def test_a_cut_between_a_picture_and_frames_without_one_is_found(
    wide: drawn.Frame, tmp_path: Path, level: int, count: int
) -> None:
    flat, picture = [np.full((HEIGHT, WIDTH, 3), level, np.uint8)] * 15, [wide[:, :WIDTH]] * count
    for shown in (flat + picture, picture + flat):
        assert values(clip(tmp_path, shown), "cuts")["cuts"] == 1.0


def test_slides_without_a_picture_are_cuts_apart(tmp_path: Path) -> None:
    slides = [np.full((HEIGHT, WIDTH, 3), level, np.uint8) for level in (30, 220, 90) for _ in range(10)]
    assert values(clip(tmp_path, slides), "cuts")["cuts"] == 2.0


@pytest.mark.parametrize("between", [0, 1, 2])
def test_neither_change_of_a_cut_through_a_few_frames_is_motion(
    wide: drawn.Frame, tmp_path: Path, between: int
) -> None:
    """Still pictures with a white frame or two between them are one cut apart, and nothing moves."""
    one, other = (drawn.pan(each, 1, HEIGHT, WIDTH, 0.0)[0] for each in (wide, wide[::-1, ::-1]))
    shown = [one] * 12 + [np.full_like(one, 250)] * between + [other] * 12
    found = values(clip(tmp_path, shown), "cuts", "motion")
    assert (found["cuts"], found["motion"]) == (1.0, pytest.approx(0, abs=0.2))


def test_a_flash_in_a_pan_that_leaves_nothing_where_it_was_is_one(tmp_path: Path) -> None:
    coarse = np.random.default_rng(5).integers(40, 140, (HEIGHT // 16 + 1, 3 * WIDTH // 16, 3), dtype=np.uint8)
    shown = drawn.pan(np.kron(coarse, np.ones((16, 16, 1), np.uint8)), 14, HEIGHT, WIDTH, 6.0)
    for i in range(5, 8):
        shown[i] = shown[i] + np.uint8(100)
    found = values(clip(tmp_path, shown), "cuts")
    assert (found["cuts"], found["flashes"]) == (0.0, 1.0)


def test_a_range_is_measured_alone(wide: drawn.Frame, tmp_path: Path) -> None:
    other = drawn.scene(np.random.default_rng(5), HEIGHT, 3 * WIDTH)
    file = clip(tmp_path, [wide[:, :WIDTH]] * 20 + drawn.pan(other, 20, HEIGHT, WIDTH, 2.0))
    first = values(file, "motion", "cuts", first=0, frames=20)
    assert first == {"motion": pytest.approx(0, abs=0.2), "static": 1.0, "cuts": 0.0, "flashes": 0.0}
    later = values(file, "motion", "cuts", first=20, frames=20)
    assert later["static"] == 0.0
    assert later["cuts"] == 0.0
    assert values(file, "cuts")["cuts"] == 1.0


def test_only_runs_of_a_long_clip_are_read(wide: drawn.Frame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_FRAMES", 24)
    file = clip(tmp_path, drawn.pan(wide, 60, HEIGHT, WIDTH, 2.0))
    request = MeasureRequest(SampledClip(file, False, HEIGHT, WIDTH, 60, FPS), 0, False, ())
    read = sampling.sample(request, frozenset(("runs", "stills")))
    assert len(read.runs) == 24
    assert read.is_next.sum() == 12
    assert len(read.stills) == sampling.STILLS
    whole = values(file, "motion")["motion"]
    monkeypatch.undo()
    assert whole == pytest.approx(values(file, "motion")["motion"], rel=0.1)


@pytest.mark.parametrize("first", [0, 7])
def test_the_first_and_the_last_frame_of_a_long_clip_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Also of a range of a file, whose other frames are not."""
    monkeypatch.setattr(sampling, "MOST_FRAMES", 24)
    dark, light = (np.full((HEIGHT, WIDTH, 3), grey, np.uint8) for grey in (100, 200))
    count = 60 - 2 * first
    shown = [dark] * 60
    shown[first] = shown[first + count - 1] = light
    request = MeasureRequest(SampledClip(clip(tmp_path, shown), False, HEIGHT, WIDTH, count, FPS), first, False, ())
    luma = sampling.sample(request, frozenset(("runs",))).runs.mean(axis=(1, 2))
    assert (luma > 150).tolist() == [True, *[False] * 22, True]


def test_sound(wide: drawn.Frame, tmp_path: Path) -> None:
    at = np.arange(2 * drawn.SAMPLE_RATE) / drawn.SAMPLE_RATE
    tone = np.sin(2 * np.pi * 440 * at).astype(np.float32)
    frames = [wide[:, :WIDTH]] * (2 * FPS)
    half = values(clip(tmp_path, frames, sound_S=0.5 * tone * (at < 1.5)), "sound")
    assert half["loudness"] == pytest.approx(20 * np.log10(0.5 * np.sqrt(0.5 * 0.75)), abs=0.5)
    assert half["silent"] == pytest.approx(0.25, abs=0.05)
    assert half["clipped_sound"] == 0.0
    loud = values(clip(tmp_path, frames, sound_S=np.clip(4 * tone, -1, 1)), "sound")
    assert loud["clipped_sound"] > 0.15
    assert loud["silent"] == 0.0
    assert all(np.isnan(list(values(clip(tmp_path, frames[:2]), "sound").values())))


def test_sound_is_that_beside_the_frames_of_a_clip_that_begin_later(wide: drawn.Frame, tmp_path: Path) -> None:
    at = np.arange(4 * drawn.SAMPLE_RATE) / drawn.SAMPLE_RATE
    tone = 0.5 * np.sin(2 * np.pi * 440 * at).astype(np.float32) * (at < 2)
    for late in (FPS // 2, 3 * FPS // 2):
        found = values(
            drawn.write_clip(tmp_path / "a.mkv", [wide[:, :WIDTH]] * (2 * FPS), fps=FPS, sound_S=tone, late=late),
            "sound",
        )
        beside = np.square(tone[late * drawn.SAMPLE_RATE // FPS :][: 2 * drawn.SAMPLE_RATE].astype(np.float64)).mean()
        assert found["silent"] == pytest.approx(late / (2 * FPS), abs=0.05)
        assert found["loudness"] == pytest.approx(10 * np.log10(beside), abs=0.5)


def test_a_rest_of_sound_is_as_loud_as_what_is_before_it() -> None:
    """A tone above silence has none, wherever its windows of 50 ms end."""
    at = np.arange(48_000) / 48_000
    tone = np.round(np.sin(2 * np.pi * 6000 * at) * 32768 * 10 ** (-54 / 20)).astype(np.int16)[:, None]
    for rest in (0, 48, 480, 2399):
        sampled = SampledClip(Path("a.wav"), False, 1, 1, 1, 24.0, samples=tone[: 9600 + rest], sample_rate=48_000)
        level_db, silent, _ = SoundLevel().values(sampled)
        assert level_db == pytest.approx(-57, abs=0.5)
        assert silent == 0.0


@pytest.mark.parametrize("loudest", [0, 1])
def test_the_level_of_silence_is_the_quietest_one(loudest: int) -> None:
    samples = np.zeros((48_000, 1), dtype=np.int16)
    samples[0] = loudest
    sampled = SampledClip(Path("a.wav"), False, 1, 1, 1, 24.0, samples=samples, sample_rate=48_000)
    assert SoundLevel().values(sampled) == (-100.0, 1.0, 0.0)


def test_pictures_lack_what_needs_neighbours_and_have_all_else(picture: drawn.Frame, tmp_path: Path) -> None:
    found = values(drawn.write_picture(tmp_path / "a.jpg", picture))
    lacks = {"motion", "static", "cuts", "flashes", "loudness", "silent", "clipped_sound"}
    assert {name for name, value in found.items() if np.isnan(value)} == lacks
    listed = {c.name for columns in measured_columns.BUILT_IN.values() for c in columns}
    assert found.keys() == listed - {"duplicate_group", "duplicate_rank"}


def test_an_animated_picture_is_measured_like_a_video(wide: drawn.Frame, tmp_path: Path) -> None:
    from PIL import Image

    shown = [Image.fromarray(frame) for frame in drawn.pan(wide, 8, HEIGHT, WIDTH, 4.0)]
    file = tmp_path / "a.webp"
    shown[0].save(file, save_all=True, append_images=shown[1:], duration=40, quality=90)
    found = values(file)
    assert found["motion"] > 10
    assert found["static"] == 0.0
    assert found["sharpness"] > 0.5


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (17, 19)])
def test_tiny_pictures_are_measured_as_far_as_possible(tmp_path: Path, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    assert 0 <= values(drawn.write_picture(tmp_path / "a.png", pixels))["brightness"] <= 1
