"""Closeness tells copies, mirrored ones too, from everything else; likeness is the mean cosine of all pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_networks import TINY
from PIL import Image

from reelworks.inference.evaluate import likeness, registry
from reelworks.inference.evaluate.clips import MeasuredClip
from reelworks.inference.evaluate.measure import MetricResult, measure
from reelworks.inference.evaluate.metric import Settings, Skip
from reelworks.inference.evaluate.training_clips import TrainingClips

NAMES = [f"{what}-{kind}" for what in ("likeness", "closeness") for kind in ("dinov2", "clip", "pixels")]


def scene(generator: np.random.Generator, frames: int = 1, side: int = 32) -> Any:
    """A drawing of eight rectangles that move a little from frame to frame."""
    made = np.full((frames, side, side, 3), generator.integers(0, 256, 3), np.uint8)
    for _ in range(8):
        top, left = generator.integers(0, side - 6, 2)
        height, width = generator.integers(4, side // 2, 2)
        colour = generator.integers(0, 256, 3)
        for t in range(frames):
            made[t, top : top + height, left + t : left + t + width] = colour
    return made


def training_of(scenes: list[Any]) -> TrainingClips:
    return TrainingClips(lambda: [MeasuredClip(f"t{i}", frames) for i, frames in enumerate(scenes)], lambda: "")


def results(names: list[str], made: dict[str, Any], using: Settings) -> dict[str, MetricResult]:
    clips = [MeasuredClip(name, frames) for name, frames in made.items()]
    return {m.name: m for m in measure(registry.all_named(names, ""), clips, None, using)[0]}


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(3, 8), st.sampled_from([1, 3]))
def test_a_copy_is_above_one_a_mirrored_one_too_and_another_clip_below(seed: int, count: int, frames: int) -> None:
    generator = np.random.default_rng(seed)
    scenes = [scene(generator, frames) for _ in range(count)]
    copied, noisy = scenes[1], (scenes[2] + generator.integers(0, 6, scenes[2].shape)).clip(0, 255).astype(np.uint8)
    new = generator.integers(0, 256, copied.shape, dtype=np.uint8)
    made = {"copy": copied, "mirror": copied[:, :, ::-1], "noisy": noisy, "new": new}
    found = results(["closeness-pixels"], made, Settings(training=training_of(scenes)))["closeness-pixels"]
    assert found.by_clip["copy"] == pytest.approx(2) == found.by_clip["mirror"]
    assert 1 < found.by_clip["noisy"] < 2
    assert 0 < found.by_clip["new"] < 1
    assert found.nearest["copy"] == found.nearest["mirror"] == "t1"
    assert found.nearest["noisy"] == "t2"


def test_networks_tell_copies_too_and_are_asked_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {name: str(TINY[name](tmp_path / name)) for name in ("dinov2", "clip")}
    generator = np.random.default_rng(0)
    scenes = [scene(generator, frames=2) for _ in range(6)]
    reads = []
    training = TrainingClips(
        lambda: (reads.append(1), [MeasuredClip(f"t{i}", f) for i, f in enumerate(scenes)])[1], lambda: ""
    )
    using = Settings(weights, training=training)
    new = np.random.default_rng(9).integers(0, 256, scenes[0].shape, dtype=np.uint8)
    found = results(NAMES, {"copy": scenes[3], "mirror": scenes[3][:, :, ::-1], "new": new}, using)
    assert not [m.skipped for m in found.values() if m.skipped]
    for name, one in found.items():
        if name.startswith("closeness"):
            assert one.by_clip["copy"] == pytest.approx(2, abs=0.02) == one.by_clip["mirror"], name
            assert one.by_clip["new"] < 1, name
            assert one.nearest["copy"] == one.nearest["mirror"] == "t3"
        else:
            assert not one.nearest
    assert len(reads) == 4  # once for each kind of embedding, of which DINOv2 and CLIP serve two metrics
    results(NAMES, {"again": new}, using)
    assert len(reads) == 4  # as at the next step of a training

    network = using.networks["dinov2"]
    of_clips = [[row / np.linalg.norm(row) for row in network.pictures(MeasuredClip("", f))] for f in [*scenes, new]]
    pairs = [np.mean([a @ b for a in of_clips[-1] for b in rows]) for rows in of_clips[:-1]]
    assert found["likeness-dinov2"].by_clip["new"] == pytest.approx(np.mean(pairs), abs=1e-9)


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1))
def test_likeness_of_pixels_is_higher_for_the_colours_that_were_trained(seed: int) -> None:
    """Between 0 and 1; 1 for what is the same everywhere. Of one clip alone, where things are may count more."""
    generator = np.random.default_rng(seed)
    blue, red = (
        [np.minimum(scene(generator), most).astype(np.uint8) for _ in range(13)]
        for most in ([60, 60, 255], [255, 60, 60])
    )
    using = Settings(training=training_of(blue[:5]))
    clips = {f"{name} {i}": clip for name, some in (("blue", blue), ("red", red)) for i, clip in enumerate(some[5:])}
    values = results(["likeness-pixels"], clips, using)["likeness-pixels"].by_clip
    assert all(0 <= value <= 1 for value in values.values())
    of_blue, of_red = (np.mean([v for name, v in values.items() if name.startswith(c)]) for c in ("blue", "red"))
    assert of_red < of_blue
    flat = np.full((2, 16, 16, 3), 77, np.uint8)
    same = results(["likeness-pixels"], {"flat": flat}, Settings(training=training_of([flat, flat])))
    assert same["likeness-pixels"].value == pytest.approx(1)


def test_copies_among_training_clips_do_not_set_the_measure() -> None:
    generator = np.random.default_rng(3)
    scenes = [scene(generator) for _ in range(5)]
    alone, doubled = (training_of(each).embedded("", likeness.thumbnail) for each in (scenes, scenes * 2))
    assert likeness.usual_distance(doubled) == pytest.approx(likeness.usual_distance(alone))
    with pytest.raises(Skip, match="no two different"):
        likeness.usual_distance(training_of([scenes[0], scenes[0][:, :, ::-1]]).embedded("", likeness.thumbnail))


def test_what_cannot_be_compared_has_its_reason() -> None:
    """No training clips are named, none can be read, or there is one alone."""
    made = {"a": scene(np.random.default_rng(0))}
    lacking = results(NAMES[2::3], made, Settings())
    assert all("name their folder with --reference" in (m.skipped or "") for m in lacking.values())
    assert "no training clip can be read" in (
        results(["likeness-pixels"], made, Settings(training=training_of([])))["likeness-pixels"].skipped or ""
    )
    alone = results(NAMES[2::3], made, Settings(training=training_of([made["a"]])))
    assert alone["likeness-pixels"].value == pytest.approx(1)
    assert "no two different" in (alone["closeness-pixels"].skipped or "")
    assert "--weights dinov2=PATH" in (
        results(["closeness-dinov2"], made, Settings())["closeness-dinov2"].skipped or ""
    )
    flat = np.zeros((1, 8, 8, 3), np.uint8)
    assert not likeness.thumbnail(MeasuredClip("", flat)).any()  # no pixels are compared, and none divides by 0


def test_of_many_files_the_same_are_compared(tmp_path: Path) -> None:
    for i in range(3):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i}.png")
    files = {f"{i:04d}": tmp_path / f"{i % 3}.png" for i in range(400)}
    some, again = TrainingClips.of_files(files), TrainingClips.of_files(dict(reversed(files.items())))
    names = [clip.name for clip in some.read()]
    assert len(names) == 256 == len(set(names))
    assert names == [clip.name for clip in again.read()]
    assert 40 < sum(name >= "0256" for name in names) < 130, "of the whole alphabet: a folder is often a scene"
    assert some.digest() == again.digest() != TrainingClips.of_files(dict(list(files.items())[:3])).digest()


class Brighter:
    """A metric from elsewhere: by how much a clip is brighter than the training clip of the nearest brightness."""

    name, higher_is_better, requires_reference = "brighter", True, False

    def __init__(self, settings: Settings) -> None:
        assert settings.training is not None
        known = [clip for clip in settings.training.read() if isinstance(clip, MeasuredClip)]
        self._levels = {clip.name: float(clip.frames.mean()) for clip in known}
        self.nearest: dict[str, str] = {}

    def value(self, clip: MeasuredClip) -> float:
        level = float(clip.frames.mean())
        self.nearest[clip.name] = min(self._levels, key=lambda name: abs(self._levels[name] - level))
        return level - self._levels[self.nearest[clip.name]]


def test_a_metric_from_elsewhere_reads_the_training_clips_and_names_one() -> None:
    grey = [np.full((1, 8, 8, 3), level, np.uint8) for level in (10, 100, 200)]
    using = Settings(training=training_of(grey))
    (found,), _ = measure([Brighter], [MeasuredClip("a", grey[1] + 7)], None, using)
    assert (found.value, found.nearest) == (7.0, {"a": "t1"})


def test_a_distance_is_that_of_the_vectors() -> None:
    """0 of one direction, and 2 of opposite ones."""
    a, b = np.random.default_rng(0).normal(size=(2, 5, 7))
    a, b = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (a, b))
    np.testing.assert_allclose(likeness.distances((a * b).sum(axis=1)), np.linalg.norm(a - b, axis=1))
    np.testing.assert_allclose(likeness.distances(np.array([1.0, -1.0])), [0, 2])
