"""The word for a clip follows from its losses beside those of its peers, and nothing stands out where nothing differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reelworks.annexes.learning import learning
from reelworks.annexes.learning.learning import (
    ERROR_RATE,
    FEWEST_PEERS,
    FEWEST_SHOWN,
    FIRST,
    OFTEN,
    SURE,
    Learning,
    Word,
)
from reelworks.annexes.learning.losses import ClipLosses, LossesAbout
from reelworks.core.errors import UserError
from reelworks.data.run.folder import RunFolder

ABOUT = LossesAbout(step=100, buckets=("a", "b"), course=((1, (2.0,)), (50, (1.0,)), (100, (1.0,))))


def table(clips: int = 200, *, spread: float = 0.2, about: LossesAbout = ABOUT) -> ClipLosses:
    """Clips of which nothing stands out."""
    chance = np.random.default_rng(0)
    made = ClipLosses.empty(about, clips)
    made.key[:] = np.arange(clips)
    made.shown[:] = 20
    made.first[:] = chance.uniform(-spread, spread, clips)
    made.recent[:] = made.longer[:] = chance.uniform(-spread, spread, clips)
    made.measured[:] = SURE
    made.gain[:] = chance.uniform(0.06, 0.14, clips)
    return made


def word_of(made: ClipLosses, place: int = 0) -> Word:
    return Word(int(learning.words_of(made).word[place]))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"recent": 2.0}, Word.NOT_LEARNT),
        ({"recent": -2.0}, Word.MEMORISED),
        ({"recent": -1.1, "longer": -1.1}, Word.LEARNT),
        ({"recent": -1.1, "shown": 20 * OFTEN}, Word.MEMORISED),
        ({"recent": 0.0, "shown": 20 * OFTEN}, Word.LEARNT),
        ({"gain": -0.2}, Word.WITHOUT_EFFECT),
        ({"gain": -0.01}, Word.LEARNT),
        ({"gain": -0.2, "measured": SURE - 1}, Word.LEARNT),
        ({"gain": -0.2, "measured": 0}, Word.LEARNT),
        ({"recent": -0.3, "longer": 0.0}, Word.STILL_LEARNING),
        ({"recent": 2.0, "shown": FEWEST_SHOWN - 1}, Word.TOO_EARLY),
        ({}, Word.LEARNT),
    ],
)
def test_a_clip_gets_its_word_and_its_peers_keep_theirs(changes: dict[str, float], word: Word) -> None:
    made = table()
    before = learning.words_of(made).word[1:].tolist()
    for name, value in changes.items():
        getattr(made, name)[0] = value
    assert word_of(made) == word
    assert learning.words_of(made).word[1:].tolist() == before
    assert set(before) == {Word.LEARNT}


def test_no_word_is_said_among_few_clips() -> None:
    made = table(FEWEST_PEERS - 1)
    made.recent[0], made.gain[1] = 3.0, -1.0
    found = learning.words_of(made)
    assert set(found.word.tolist()) == {Word.LEARNT}
    assert found.share.argmax() == 0


def test_all_are_still_learning_while_the_usual_loss_falls() -> None:
    about = LossesAbout(step=100, buckets=("a", "b"), course=((1, (2.0,)), (50, (1.0,)), (100, (0.9,))))
    assert set(learning.words_of(table(about=about)).word.tolist()) == {Word.STILL_LEARNING}


@pytest.mark.parametrize("clips", [40, 400])
@pytest.mark.parametrize("degrees", [5, 1000])
def test_good_clips_get_a_word_as_seldom_as_is_said(clips: int, degrees: int) -> None:
    """By a normal distribution, in few sets; by one with heavy tails, of few clips."""
    chance, named = np.random.default_rng(0), []
    for _ in range(100):
        made, drawn = table(clips), 0.1 * chance.standard_t(degrees, (4, clips))
        made.first[:], made.recent[:], made.gain[:], made.by_heart[:] = (
            drawn[0],
            drawn[0] + drawn[1],
            drawn[2],
            drawn[3],
        )
        named.append(learning.words_of(made).word)
    for word in (Word.NOT_LEARNT, Word.WITHOUT_EFFECT, Word.MEMORISED):
        assert np.mean([each == word for each in named]) <= 0.01
        if degrees > 100:
            assert np.mean([(each == word).any() for each in named]) <= 3 * ERROR_RATE


@pytest.mark.parametrize("clips", [40, 400])
def test_captions_that_raise_losses_are_named_among_many_and_ranked_first_among_few(clips: int) -> None:
    for seed in range(5):
        chance, made = np.random.default_rng(seed), table(clips)
        made.gain[:] = chance.normal(0.1, 0.02, clips)
        made.gain[:4] = -0.1
        found = learning.words_of(made)
        if clips > 100:
            assert (found.word[:4] == Word.WITHOUT_EFFECT).all()
        assert set(np.argsort(-found.share)[:4].tolist()) == set(range(4))
        made.gain[:4] = 0.03
        found = learning.words_of(made)
        assert (found.word > Word.MEMORISED).all()
        assert set(np.argsort(-found.share)[:FIRST].tolist()) >= set(range(4))


def test_a_high_loss_makes_no_rank_where_the_caption_lowers_it() -> None:
    chance, made = np.random.default_rng(0), table(40)
    made.gain[:], made.measured[:] = chance.normal(0.1, 0.02, 40), 4
    made.gain[1] = -0.02
    made.recent[:2] += 0.3
    share = learning.words_of(made).share
    assert share[0] < np.median(share) + 0.1 < share[1]
    made.measured[0] = 0
    assert learning.words_of(made).share[0] > 0.2
    made.measured[0], made.recent[0] = 4, made.recent[0] + 5  # so far above that it is sure
    assert learning.words_of(made).word[0] == Word.NOT_LEARNT


def test_clips_are_compared_with_no_held_out_ones() -> None:
    """Whatever was measured of these."""
    shares = []
    for gain in (0.1, -2.0):
        made = table()
        made.held_out[120:], made.shown[120:], made.gain[120:] = True, 0, gain
        shares.append(learning.words_of(made).share[:120].tolist())
    assert shares[0] == shares[1]


def test_what_a_lora_draws_without_its_caption_is_known_by_heart() -> None:
    made = table()
    made.by_heart[:] = np.random.default_rng(0).normal(0.1, 0.02, len(made))
    made.by_heart[0] = 0.6
    found = learning.words_of(made)
    assert found.share.argmax() == 0
    assert learning.NUMBERS[found.unusual[0]] == "by_heart"
    assert set(found.word.tolist()) == {Word.LEARNT}  # it is a rank alone


def test_without_a_base_nothing_is_known_by_heart() -> None:
    made = table()
    before = learning.words_of(made)
    made.by_heart[:] = np.nan
    for name, values in vars(before).items():
        np.testing.assert_array_equal(getattr(learning.words_of(made), name), values, err_msg=name)


def test_a_caption_that_helps_a_little_has_an_effect_however_often_it_is_measured() -> None:
    made = table(1000)
    made.gain[:], made.measured[:] = np.random.default_rng(0).normal(0.1, 0.01, 1000), 8
    made.gain[0] = 0.01
    assert word_of(made) == Word.LEARNT
    made.gain[0] = -0.01
    assert word_of(made) == Word.WITHOUT_EFFECT


def test_peers_are_those_of_the_bucket_where_there_are_enough() -> None:
    made = table(200)
    made.bucket[:FEWEST_PEERS] = 1
    made.recent[:FEWEST_PEERS] += 2.0  # a bucket of its own level: none of it stands out
    assert set(learning.words_of(made).word.tolist()) == {Word.LEARNT}
    made.bucket[5:FEWEST_PEERS], made.recent[5:FEWEST_PEERS] = 0, 0.0
    assert (learning.words_of(made).word[:5] == Word.NOT_LEARNT).all()


def test_deviations_are_of_each_side() -> None:
    skewed = np.exp(np.random.default_rng(0).normal(0, 1, 2000))
    apart = learning.deviations(skewed, skewed, 0.03)
    assert (apart > 3.5).mean() < 0.05
    assert (apart < -3.5).sum() == 0
    assert learning.deviations(np.full(5, 0.7), np.full(5, 0.7), 0.03).tolist() == [0] * 5


def test_an_unknown_word_is_refused() -> None:
    assert Word.named("not-learnt") == Word.NOT_LEARNT
    with pytest.raises(UserError, match="choose among not_learnt"):
        Word.named("forgotten")


def test_orders_are_by_their_value_then_by_key_and_a_word_chooses_among_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = replace(
        table(300),
        recent=rng.integers(0, 9, 300).astype(np.float32),
        gain=rng.integers(0, 3, 300).astype(np.float32),
        measured=rng.integers(0, 2, 300).astype(np.int16),
        held_out=rng.random(300) < 0.1,
    )
    known = Learning(RunFolder(tmp_path), made, learning.words_of(made))
    trained = np.flatnonzero(~made.held_out & (made.shown > 0)).tolist()
    values = {
        "worst": lambda i: (known.found.word[i] > Word.MEMORISED, -known.found.share[i]),
        "loss": lambda i: -made.recent[i],
        "trend": lambda i: -known.found.trend[i],
        "gain": lambda i: made.gain[i] if made.measured[i] else np.inf,
        "path": lambda i: f"{made.key[i]:016x}",  # without a record of the run
    }
    for sort, value in values.items():
        order = sorted(trained, key=lambda i: (value(i), made.key[i]))
        for _ in range(2):
            assert known.places(sort).tolist() == order
        for word in Word:
            assert known.places(sort, [word.label]).tolist() == [i for i in order if known.found.word[i] == word]
    words = [Word(known.found.word[i]).label for i in trained]
    assert known.counts == {word.label: words.count(word.label) for word in Word if word.label in words}
