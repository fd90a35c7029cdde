"""A score is high for the right colours alone: painters that ignore their prompt must fail it."""

from __future__ import annotations

import numpy as np
import pytest

from reelworks.demo import colour, scenes
from reelworks.demo.scenes import PROMPTS

NAMES = tuple(scenes.COLOURS)


def _clip(name: str, shape: str = "circle", background: str = "dark") -> np.ndarray:
    subject = scenes.Subject(name, shape, "left", background)
    return scenes.frames(scenes.scene(subject, (48, 32), num_frames=3, key=(0, f"{name} {shape}")))


@pytest.mark.parametrize("background", scenes.BACKGROUNDS)
@pytest.mark.parametrize("shape", scenes.SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_colour_of_noisy_pale_clips(name: str, shape: str, background: str) -> None:
    rng = np.random.default_rng(0)
    clip = _clip(name, shape, background)
    pale = 0.75 * clip + 0.25 * np.median(clip, axis=(0, 1, 2)) + rng.normal(0, 8, clip.shape)
    assert colour.clip_colour(np.clip(pale, 0, 255).astype(np.uint8)) == name


def test_a_still_of_a_few_pixels_has_a_colour() -> None:
    still = np.full((1, 3, 3, 3), 20, np.uint8)
    still[0, 1, 1] = scenes.COLOURS["cyan"]
    assert colour.clip_colour(still) == "cyan"


def test_a_painter_that_follows_the_prompt_scores_all() -> None:
    assert colour.score([(p.colour, _clip(p.colour)) for p in PROMPTS]) == (10, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_painter_of_one_colour_scores_low(name: str) -> None:
    score = colour.score([(p.colour, _clip(name)) for p in PROMPTS])
    assert score.right == sum(p.colour == name for p in PROMPTS) <= 2
    assert score.rotated >= score.right


@pytest.mark.parametrize("shift", range(1, 6))
def test_a_painter_with_swapped_colours_is_found_by_rotation(shift: int) -> None:
    shown = [(p.colour, _clip(NAMES[(NAMES.index(p.colour) + shift) % 6])) for p in PROMPTS]
    assert colour.score(shown) == (0, 10)


def test_no_clips_score_nothing() -> None:
    assert colour.score([]) == (0, 0)


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
        colour.clip_colour(frames)
