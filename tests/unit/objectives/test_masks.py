import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.core import hash_rng
from reelworks.core.errors import UserError
from reelworks.data.loader import frame_masks
from reelworks.models.objectives.config import ObjectiveConfig

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "masks.json").read_text(encoding="utf-8"))
REFERENCE_DRAWS = 20_000
N = 4_000
FALLS_BACK = {("image_head_tail", 2)} | {
    (f"quarter_{place}", n) for place in ("random", "head", "tail", "head_tail") for n in (2, 3)
}


def words(count, seed=0):
    return hash_rng.hash64(seed, np.arange(count), hash_rng.Purpose.MASK)


def as_text(mask):
    return ["".join("01"[bit] for bit in row) for row in mask.astype(int)]


def distinct(mask):
    return {"".join("01"[bit] for bit in row) for row in {row.tobytes() for row in mask}}


def assert_same_frequency(ours, ours_draws, golden, golden_draws):
    p = (ours + golden) / (ours_draws + golden_draws)
    tolerance = 5 * np.sqrt(p * (1 - p) * (1 / ours_draws + 1 / golden_draws))
    assert (np.abs(ours / ours_draws - golden / golden_draws) <= tolerance + 1e-12).all()


@pytest.mark.parametrize("name", GOLDEN["per_strategy"])
def test_the_set_of_masks_equals_the_reference_for_every_length(name):
    for text, golden in GOLDEN["per_strategy"][name].items():
        n = int(text)
        if name == "random":
            continue
        found = distinct(frame_masks.frame_mask(name, n, words(N)))
        assert found == ({"1" * n} if (name, n) in FALLS_BACK else set(golden["masks"])), n


@pytest.mark.parametrize("name", GOLDEN["per_strategy"])
@pytest.mark.parametrize("n", [1, 4, 5, 15, 30])
def test_frequencies_equal_the_reference(name, n):
    golden = GOLDEN["per_strategy"][name][str(n)]
    mask = frame_masks.frame_mask(name, n, words(N, seed=n))
    position = np.asarray(golden["p_true_by_position"]) * REFERENCE_DRAWS
    assert_same_frequency(mask.sum(axis=0), N, position, REFERENCE_DRAWS)
    count = np.bincount(mask.sum(axis=1), minlength=n + 1)
    golden_count = np.asarray([golden["true_count_hist"].get(str(i), 0) for i in range(n + 1)])
    assert_same_frequency(count, N, golden_count, REFERENCE_DRAWS)
    if "masks" in golden:
        found = Counter(as_text(mask))
        keys = list(golden["masks"])
        ours, theirs = (np.asarray([c[k] for k in keys]) for c in (found, golden["masks"]))
        assert_same_frequency(ours, N, theirs, REFERENCE_DRAWS)


@pytest.mark.parametrize("name", GOLDEN["mixtures"])
def test_mixtures_of_the_released_recipes_equal_the_reference(name):
    golden = GOLDEN["mixtures"][name]
    n = int(name.split("/n")[1])
    mask = frame_masks.draw_frame_mask(golden["mask_ratios"], n, words(REFERENCE_DRAWS))
    count = np.bincount(mask.sum(axis=1), minlength=n + 1)
    golden_count = np.asarray([golden["true_count_hist"].get(str(i), 0) for i in range(n + 1)])
    assert_same_frequency(count, REFERENCE_DRAWS, golden_count, REFERENCE_DRAWS)


@pytest.mark.parametrize("name", GOLDEN["constructor_edge_cases"])
def test_ratios_are_refused_where_the_reference_refuses_them(name):
    """Two differ on purpose: the right spelling of interpolate is known, and a sum above one is refused."""
    case = GOLDEN["constructor_edge_cases"][name]
    theirs = case["result"] == "AssertionError"
    try:
        ObjectiveConfig(mask_ratios=case["input"])
    except UserError:
        ours = True
    else:
        ours = False
    assert ours == (theirs != (name in ("interpolate_correct_spelling", "sum_above_one")))


@settings(max_examples=60)
@given(st.sampled_from(sorted(frame_masks.STRATEGIES)), st.integers(1, 70), st.integers(0, 2**64 - 1))
def test_every_mask_generates_something_and_pictures_have_no_condition(name, n, seed):
    mask = frame_masks.frame_mask(name, n, words(8, seed))
    assert mask.shape == (8, n)
    assert mask.any(axis=1).all()
    assert n > 1 or mask.all()


@pytest.mark.parametrize(("name", "n"), sorted(FALLS_BACK))
def test_where_the_reference_fails_everything_is_generated(name, n):
    assert frame_masks.frame_mask(name, n, words(100)).all()


def test_a_mask_depends_on_its_clip_alone_and_not_on_the_order_of_ratios():
    ratios = {"random": 0.3, "image_head": 0.3, "quarter_tail": 0.2}
    word = words(500)
    together = frame_masks.draw_frame_mask(ratios, 9, word)
    alone = np.concatenate([frame_masks.draw_frame_mask(ratios, 9, w[None]) for w in word])
    backwards = frame_masks.draw_frame_mask(dict(reversed(ratios.items())), 9, word[::-1])[::-1]
    assert len(np.unique(together, axis=0)) > 50
    assert np.array_equal(together, alone)
    assert np.array_equal(together, backwards)


def test_both_spellings_mean_the_same():
    assert np.array_equal(
        frame_masks.frame_mask("interpolate", 8, words(50)), frame_masks.frame_mask("intepolate", 8, words(50))
    )


def test_a_ratio_of_one_reaches_every_clip():
    assert not frame_masks.draw_frame_mask({"image_head": 1.0}, 6, words(1000))[:, 0].any()
    assert frame_masks.draw_frame_mask({}, 6, words(1000)).all()
