"""A judge names what a drawn clip shows, and is not talked into a word by a clip that shows something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reelworks.demo import scenes
from reelworks.demo.judge import judge
from reelworks.demo.scenes import BACKGROUNDS, COLOURS, DIRECTIONS, SHAPES, Subject

SIZE = (96, 64)
SUBJECTS = [Subject(c, s, d, b) for c in COLOURS for s in SHAPES for d in DIRECTIONS for b in BACKGROUNDS]
WORDS = ("colour", "shape", "direction", "background")


def drawn(subject: Subject, number: int = 0, num_frames: int = 9) -> np.ndarray:
    return scenes.frames(scenes.scene(subject, SIZE, num_frames=num_frames, key=(number, subject.slug)))


def pale(clip: np.ndarray, number: int) -> np.ndarray:
    """Return a clip as an undertrained model draws it: with less contrast, noise, and edges over three pixels."""
    rng = np.random.default_rng(number)
    soft = np.mean([clip, np.roll(clip, 1, axis=1), np.roll(clip, 1, axis=2)], axis=0)
    ground = np.median(clip, axis=(0, 1, 2))
    return np.clip(0.75 * soft + 0.25 * ground + rng.normal(0, 8, clip.shape), 0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    "seen", [pytest.param(lambda clip, _: clip, marks=pytest.mark.slow), pale], ids=["drawn", "pale"]
)
@pytest.mark.slow
def test_drawn_clips_are_judged_right(seen: Callable[[Any, int], np.ndarray]) -> None:
    answers = [judge(seen(drawn(subject, n), n)).agrees(subject) for n, subject in enumerate(SUBJECTS)]
    for word in WORDS:
        assert np.mean([answer[word] for answer in answers]) >= 0.99, word


def test_clips_of_other_words_are_refused() -> None:
    verdicts = [(subject, judge(drawn(subject))) for subject in SUBJECTS[::5]]
    accepted = [
        all(verdict.agrees(other).values()) for subject, verdict in verdicts for other in SUBJECTS if other != subject
    ]
    assert len(accepted) > 4000
    assert np.mean(accepted) <= 0.02


def mask_of(draw: Callable[[Any, Any], Any]) -> np.ndarray:
    """Return a clip of a red subject that moves right, of pixels for which `draw(x, y)` holds, about its centre."""
    frames = np.empty((9, 64, 96, 3), np.uint8)
    frames[:] = BACKGROUNDS["dark"]
    for t in range(9):
        x, y = np.meshgrid(np.arange(96) - 26.5 - 5 * t, np.arange(64) - 31.5)
        frames[t][draw(x, y)] = COLOURS["red"]
    return frames


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda x, y: (np.hypot(x, y) < 16) & (np.hypot(x, y) > 8), id="ring"),
        pytest.param(lambda x, y: np.minimum(abs(x), abs(y)) < 5 - np.maximum(abs(x), abs(y)) // 16 * 9, id="cross"),
        pytest.param(lambda x, y: (np.hypot(x, y) < 16) & (y < 0), id="half disc"),
        pytest.param(lambda x, y: abs(x) < 8 - y / 2 - 100 * (abs(y) > 16), id="triangle upside down"),
        pytest.param(lambda x, y: (abs(x) < 16) & (abs(y) < 8), id="bar"),
        pytest.param(lambda x, y: abs(x) ** 3 + abs(y) ** 3 < 16**3, id="between a circle and a square"),
        pytest.param(lambda x, y: (abs(x - 8) < 8) & (abs(y) < 16) | (abs(x) < 16) & (abs(y - 8) < 8), id="blocks"),
    ],
)
def test_other_shapes_are_none_of_the_three(draw: Callable[[Any, Any], Any]) -> None:
    verdict = judge(mask_of(draw))
    assert verdict.shape is None
    assert (verdict.colour, verdict.direction, verdict.background) == ("red", "right", "dark")


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([4] * 9, id="still"),
        pytest.param([0, 8, 1, 7, 2, 6, 3, 5, 4], id="jumping"),
        pytest.param([0, 2, 4, 6, 8, 6, 4, 2, 0], id="turning back"),
    ],
)
def test_what_does_not_move_evenly_has_no_direction(order: list[int]) -> None:
    assert judge(drawn(Subject("blue", "circle", "up", "grey"))[order]).direction is None


def test_diagonal_motion_has_no_direction() -> None:
    clip = mask_of(lambda x, y: np.hypot(x, y) < 10)
    falling = np.stack([np.roll(frame, 5 * t - 20, axis=0) for t, frame in enumerate(clip)])
    assert judge(falling).direction is None


def test_a_shape_in_half_of_the_frames_is_not_named() -> None:
    clip = drawn(Subject("green", "square", "left", "dark"))
    clip[::2] = mask_of(lambda x, y: np.hypot(x, y) < 14)[::2, ..., [1, 0, 2]]
    assert judge(clip).shape is None


def test_an_empty_clip_shows_a_background() -> None:
    grey = np.full((3, 32, 48, 3), 110, np.uint8)
    assert judge(grey) == (None, None, None, "grey")


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((2, 8, 8, 3), np.float32),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((2, 3, 8, 8), np.uint8),
        np.zeros((0, 8, 8, 3), np.uint8),
    ],
)
def test_other_arrays_are_refused(frames: np.ndarray) -> None:
    with pytest.raises(ValueError, match="give uint8"):
        judge(frames)
