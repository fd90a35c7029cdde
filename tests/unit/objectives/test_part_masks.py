"""A drawn mask of a clip leaves something to make and gives something, and is a function of the clip's word alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.core import hash_rng
from reelworks.core.shape import Shape
from reelworks.data.loader import frame_masks, part_masks

BOTH = {"image_head": 0.2, "interpolate": 0.2, "inpaint": 0.2, "outpaint": 0.2}


def words(count, seed=0):
    return hash_rng.hash64(seed, np.arange(count), hash_rng.Purpose.MASK)


@settings(max_examples=40)
@given(
    st.sampled_from([*frame_masks.STRATEGIES, *frame_masks.AREAS]),
    st.integers(1, 33),
    st.integers(16, 100),
    st.integers(16, 100),
    st.integers(0, 2**64 - 1),
)
def test_every_mask_gives_a_part_and_leaves_one(name, num_frames, height, width, seed):
    """A clip of which nothing can be given has no mask; in a picture, only areas can."""
    shape = Shape(num_frames, height, width)
    for mask in part_masks.draw({name: 1.0}, shape, words(4, seed)):
        if mask is None:
            assert name not in frame_masks.AREAS
            continue
        pixels = mask.pixels(shape)
        assert pixels.shape == (num_frames, height, width, 1)
        assert set(np.unique(pixels)) == {0, part_masks.WHITE}


@pytest.mark.parametrize("name", ["image_head", "image_tail", "image_head_tail", "quarter_head", "random"])
def test_frames_are_those_of_the_strategy_counted_in_the_clip(name):
    """The given frames are where the mask of as many latent frames would be False, whole and no others."""
    shape = Shape(17, 16, 24)
    word = words(20)
    frames = frame_masks.frame_mask(name, 17, word)
    for mask, generated in zip(part_masks.draw({name: 1.0}, shape, word), frames, strict=True):
        if mask is None:
            assert generated.all()
            continue
        assert np.array_equal(mask.pixels(shape)[:, 3, 5, 0] > 0, generated)
        assert (mask.pixels(shape) == mask.pixels(shape)[:, :1, :1]).all()


def test_areas_have_their_sizes_and_lie_everywhere():
    """`inpaint` makes a quarter to three quarters of each side anew; `outpaint` up to three eighths at any of four sides."""
    shape = Shape(5, 64, 96)
    boxes = np.array([mask.box for mask in part_masks.draw({"inpaint": 1.0}, shape, words(2000))])
    heights, widths = boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]
    assert (heights.min(), heights.max(), widths.min(), widths.max()) == (16, 48, 24, 72)
    assert boxes[:, 0].min() == boxes[:, 2].min() == 0
    assert (boxes[:, 1].max(), boxes[:, 3].max()) == (64, 96)
    masks = part_masks.draw({"outpaint": 1.0}, shape, words(2000))
    boxes = np.array([mask.box for mask in masks])
    margins = np.stack([boxes[:, 0], 64 - boxes[:, 1], boxes[:, 2], 96 - boxes[:, 3]], axis=1)
    assert all(mask.keeps_box for mask in masks)
    assert (margins > 0).any(axis=1).all()
    assert len(np.unique(margins > 0, axis=0)) == 15
    assert margins.max(axis=0).tolist() == [24, 24, 36, 36]
    assert np.where(margins > 0, margins, 99).min(axis=0).tolist() == [8, 8, 12, 12]
    assert (masks[0].pixels(shape)[0] == masks[0].pixels(shape)[4]).all()


def test_masks_have_the_shares_of_their_strategies_and_depend_on_their_clip_alone():
    shape, word = Shape(9, 32, 32), words(4000)
    masks = part_masks.draw(BOTH, shape, word)
    kinds = [
        "none" if m is None else "outpaint" if m.keeps_box else "inpaint" if m.box else len(m.kept_frames)
        for m in masks
    ]
    shares = [kinds.count(kind) / len(kinds) for kind in ("none", "outpaint", "inpaint", 1)]
    assert shares == pytest.approx([0.2] * 4, abs=0.03)
    assert part_masks.draw(dict(reversed(BOTH.items())), shape, word[::-1]) == masks[::-1]
