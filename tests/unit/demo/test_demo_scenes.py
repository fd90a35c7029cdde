"""Captions are balanced, five combinations are in none of them, and all of it follows from the seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from reelworks.demo import formats, make, scenes
from reelworks.demo.scenes import PROMPTS

SEEDS = (0, 1, 7)


def _words(text: str) -> tuple[str, str, str]:
    """Colour, shape and direction of a caption with motion."""
    _, colour, shape, _, direction, *_ = text.split()
    return colour, shape, direction


def test_captions_read_as_sentences() -> None:
    assert scenes.Subject("red", "circle", "left", "dark").caption == "a red circle moves left before a dark background"
    assert scenes.Subject("blue", "square", None, "grey").caption == "a blue square before a grey background"


@pytest.mark.parametrize("seed", SEEDS)
def test_left_out_combinations_are_in_no_caption_and_all_others_are(seed: int) -> None:
    captions = [video.scene.subject.caption for video in scenes.videos(seed)]
    captions += [bad.caption for bad in make.BAD if bad.caption and "moves" in bad.caption]
    said = {_words(caption) for caption in captions}
    assert len(scenes.LEFT_OUT) == 5
    assert said.isdisjoint(scenes.LEFT_OUT)
    assert len(said | scenes.LEFT_OUT) == 6 * 3 * 4


def test_prompts_cover_all_colours_and_half_of_them_are_left_out_of_the_captions() -> None:
    said = {_words(video.scene.subject.caption) for video in scenes.videos(0)}
    asked = [_words(prompt.caption) for prompt in PROMPTS]
    assert len(set(asked)) == 10
    assert {words for words in asked if words not in said} == scenes.LEFT_OUT
    assert {prompt.colour for prompt in PROMPTS} == set(scenes.COLOURS)
    for prompt, words in zip(PROMPTS, asked, strict=True):
        assert prompt.colour == words[0]
        assert prompt.seen == (words in said)


@pytest.mark.parametrize("seed", SEEDS)
def test_words_are_balanced(seed: int) -> None:
    subjects = [video.scene.subject for video in scenes.videos(seed)]
    assert set(Counter(s.colour for s in subjects).values()) == {52}
    for words in (Counter(s.shape for s in subjects).values(), Counter(s.direction for s in subjects).values()):
        assert max(words) - min(words) <= 2
    for colour in scenes.COLOURS:
        grounds = Counter(s.background for s in subjects if s.colour == colour)
        assert min(grounds["dark"], grounds["grey"]) >= 4
    stills = Counter((p.scene.subject.colour, p.scene.subject.background) for p in scenes.pictures(seed))
    assert set(stills.values()) == {3}
    assert len(stills) == 12


def test_a_seed_means_its_scenes_and_another_seed_others() -> None:
    assert scenes.videos(3) == scenes.videos(3)
    assert scenes.pictures(3) == scenes.pictures(3)
    assert {v.name for v in scenes.videos(3)} != {v.name for v in scenes.videos(4)}
    assert scenes.pictures(3) != scenes.pictures(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_sizes_lengths_and_rates(seed: int) -> None:
    all_scenes = [video.scene for video in scenes.videos(seed)]
    assert all(5 <= len(s.pts) <= 120 and 12 <= s.fps <= 60 for s in all_scenes)
    # Eight frames an eighth of a second apart fit into most clips, and show all of their motion.
    usual = [s for s in all_scenes if len(s.pts) == formats.usual_length(s.fps)]
    assert len(usual) > len(all_scenes) * 0.9
    assert all(7 / 8 <= (len(s.pts) - 1) / s.fps <= 1 for s in usual)
    assert sum(64 <= min(s.width, s.height) <= 96 for s in all_scenes) > len(all_scenes) * 0.8
    assert all(s.width % 2 == 0 and s.height % 2 == 0 for s in all_scenes)
    assert {s.fps for s in all_scenes} == set(formats.FRAME_RATES)


def test_times_grow_and_only_variable_ones_vary() -> None:
    for video in scenes.videos(0):
        intervals = np.diff(video.scene.pts)
        assert (intervals > 0).all()
        assert (len(set(intervals)) > 1) == video.format.variable


def test_shapes_stay_in_the_frame_and_move_as_said() -> None:
    for video in scenes.videos(0):
        scene = video.scene
        x_T, y_T = scenes.path(scene)
        r = scene.radius_px
        assert 0.2 < r / min(scene.width, scene.height) < 0.3
        assert r < x_T.min()
        assert x_T.max() < scene.width - r
        assert r < y_T.min()
        assert y_T.max() < scene.height - r
        travel = np.array([x_T[-1] - x_T[0], y_T[-1] - y_T[0]])
        step = np.array(scenes.DIRECTIONS[scene.subject.direction])
        assert travel @ step > 0.3 * min(scene.width, scene.height)
        assert abs(travel @ step[::-1]) < 1e-3


def test_frames_hold_the_two_colours_and_a_soft_edge() -> None:
    scene = scenes.scene(scenes.Subject("red", "circle", None, "grey"), (96, 64), key=(0, "edge"))
    frames_THWC = scenes.frames(scene)
    assert frames_THWC.shape == (1, scene.height, scene.width, 3)
    centre = frames_THWC[0, scene.height // 2, scene.width // 2]
    assert tuple(centre) == scenes.COLOURS[scene.subject.colour]
    assert tuple(frames_THWC[0, 0, 0]) == scenes.BACKGROUNDS[scene.subject.background]
    assert len(np.unique(frames_THWC.reshape(-1, 3), axis=0)) > 8


@pytest.mark.parametrize(("shape", "area"), [("circle", np.pi), ("square", np.pi), ("triangle", 2.0)])
def test_shapes_have_their_area(shape: str, area: float) -> None:
    subject = scenes.Subject("red", shape, None, "dark")
    scene = scenes.scene(subject, (96, 96), key=(0, "area"))
    red_HW = scenes.frames(scene)[0, :, :, 0].astype(float)
    cover = ((red_HW - red_HW.min()) / (red_HW.max() - red_HW.min())).sum()
    assert cover == pytest.approx(area * scene.radius_px**2, rel=0.01)
