"""The account of clips' losses finds what is a clip's own, whichever ranks noted it and whenever it is asked for."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from reelworks.annexes.learning import learning
from reelworks.annexes.learning.account import UNREADABLE, Measured, _AccountRows, _TrainedClips, _UsualLoss
from reelworks.annexes.learning.losses import ClipLosses, Usual
from reelworks.annexes.learning.rounds import (
    _BEGIN,
    _BEGIN_WITH_WEIGHTS,
    _HASTE,
    SHARE,
    ClipLossRounds,
    affordable,
    choose,
)
from reelworks.data.distributed.mesh import World
from reelworks.data.schedule.cursor import Aliases
from reelworks.training.loop.config import TrainConfig
from reelworks.training.observers.observer import Pause

CLIPS, STEPS, BATCH = 60, 400, 12
UIDS = np.random.default_rng(1).integers(1, 1 << 62, CLIPS, dtype=np.uint64)


def laid_out(stored: ClipLosses | None = None, uids: Any = UIDS, buckets: tuple[str, ...] = ("a", "b")) -> _AccountRows:
    rows = SimpleNamespace(uid=uids, ordinal=np.arange(len(uids)))
    table = SimpleNamespace(buckets=[SimpleNamespace(name=name) for name in buckets])
    data: Any = SimpleNamespace(rows=rows, table=table)
    position: Any = SimpleNamespace(aliases=Aliases())
    return _AccountRows.lay_out(data, position, stored)


def shown(seed: int = 0) -> tuple[_TrainedClips, np.ndarray]:
    """Losses of a training that falls, of two buckets and all timesteps, and each clip's own factor as a logarithm."""
    chance = np.random.default_rng(seed)
    own = np.round(chance.normal(0, 0.4, CLIPS), 2)
    step = np.repeat(np.arange(1, STEPS + 1), BATCH)
    clip, time = chance.integers(0, CLIPS, len(step)), chance.uniform(0, 1000, len(step))
    bucket = clip % 2
    usual = (0.3 + (time / 1000 - 0.5) ** 2 * 3) * np.exp(-step / 300) * np.where(bucket, 2.0, 0.7)
    loss = usual * np.exp(own[clip] + chance.normal(0, 0.05, len(step)))
    place = np.tile(np.arange(BATCH), STEPS)
    return _TrainedClips(step, place // 4, place % 4, UIDS[clip], bucket, time, loss), own


def test_what_is_left_of_losses_is_a_clips_own_factor() -> None:
    rows, (shows, own) = laid_out(), shown()
    rows.add(shows)
    for bucket in (0, 1):  # each beside the others of its bucket
        mine = np.arange(CLIPS) % 2 == bucket
        found, real = rows.table.recent[mine], own[mine]
        np.testing.assert_allclose(found - np.median(found), real - np.median(real), atol=0.15)
    told = rows.about.course
    assert rows.about.usual_change(np.array([20]))[0] == pytest.approx(-(STEPS - 20) / 300, abs=0.15)
    assert len(told) <= 128


def test_a_loss_is_a_multiple_of_that_of_the_peers_however_it_falls() -> None:
    """The usual loss of the account lags: beside it, all losses of a falling course would be low."""
    rows, (shows, own) = laid_out(), shown()
    rows.add(shows)
    stored = rows.to_losses()
    level, at = learning.words_of(stored).level, np.argsort(stored.key)[np.searchsorted(np.sort(stored.key), UIDS)]
    assert abs(np.median(stored.recent)) > 0.03
    for bucket in (0, 1):
        mine = np.arange(CLIPS) % 2 == bucket
        np.testing.assert_allclose(level[at][mine], own[mine] - np.median(own[mine]), atol=0.15)


def test_a_trend_is_that_of_the_losses_whenever_a_clip_came() -> None:
    """Also of few clips with a batch of one, whose first steps see few timesteps, and of clips that came when losses had fallen."""
    chance, late = np.random.default_rng(0), CLIPS // 2
    for slope in (0.0, 1 / 2000):
        rows, step = laid_out(), 0
        for epoch in range(60):
            for clip in chance.permutation(CLIPS if epoch >= 30 else late):
                step, time = step + 1, chance.uniform(0, 1000)
                loss = (0.05 + np.exp(-time / 250)) * np.exp(-slope * step)
                one = [np.array([value]) for value in (step, 0, 0, UIDS[clip], clip % 2, time, loss)]
                rows.add(_TrainedClips(*one))
        trend = learning.words_of(rows.to_losses()).trend
        fell = -slope * (step - rows.table.settled)
        np.testing.assert_allclose(np.median(trend[:late]), np.median(fell[:late]), atol=0.1)
        np.testing.assert_allclose(np.median(trend[late:]), np.median(fell[late:]), atol=0.1)


def test_the_account_is_the_same_in_parts_of_ranks_and_over_a_file() -> None:
    whole, (shows, _) = laid_out(), shown()
    whole.add(shows)
    order = np.random.default_rng(4).permutation(len(shows.step))  # as ranks tell them
    parts = laid_out()
    for first, last in ((1, 57), (58, 58), (59, 250), (251, STEPS)):
        some = order[(shows.step[order] >= first) & (shows.step[order] <= last)]
        parts.add(shows.take(some))
        # A kill in between: the account goes on from its file.
        parts = laid_out(ClipLosses.from_bytes(parts.to_losses().to_bytes()))
    assert parts.to_losses().to_bytes() == whole.to_losses().to_bytes()


def test_clips_that_leave_the_set_keep_what_is_known_and_may_come_back() -> None:
    rows, (shows, _) = laid_out(), shown()
    rows.add(shows)
    kept = rows.to_losses()
    fewer = laid_out(ClipLosses.from_bytes(kept.to_bytes()), UIDS[20:][::-1], ("c", "b"))
    assert fewer.to_losses().to_bytes() != kept.to_bytes()  # it names one bucket more
    again = laid_out(ClipLosses.from_bytes(fewer.to_losses().to_bytes()))
    for name, values in kept.columns().items():
        np.testing.assert_array_equal(again.to_losses().columns()[name][:CLIPS], values, err_msg=name)


def test_the_gain_is_what_the_caption_takes_away_over_all_measurements() -> None:
    (shows, _), chance = shown(), np.random.default_rng(0)
    rows, bucket, time = laid_out(), np.arange(CLIPS) % 2, np.full(CLIPS, 900.0)
    rows.add(shows)
    usual, gains, by_heart = rows.usual.at(time, bucket), [], np.arange(CLIPS) / CLIPS
    for times in (1, 2, 3):
        gains.append(chance.normal(0.1, 0.03, CLIPS))
        alone = usual * np.exp(gains[-1])
        later = by_heart + (times > 1)  # what is known by heart grows, and is that of the first time
        parts = UIDS, bucket, np.zeros(CLIPS, bool), time, usual, alone, alone * np.exp(later)
        rows.note_measured(Measured.joined([Measured(*parts)]))
        assert (rows.table.measured == times).all()
        np.testing.assert_allclose(rows.table.gain[rows.of_uids(UIDS)], np.mean(gains, axis=0), atol=1e-6)
        np.testing.assert_allclose(rows.table.by_heart[rows.of_uids(UIDS)], by_heart, atol=1e-6)


def test_a_clip_that_could_not_be_read_is_not_measured_again() -> None:
    rows, (shows, _) = laid_out(), shown()
    rows.add(shows)
    losses = np.where(np.arange(CLIPS) == 5, np.nan, 1.0)
    bucket, time = np.arange(CLIPS) % 2, np.full(CLIPS, 900.0)
    rows.note_measured(Measured.joined([Measured(UIDS, bucket, np.zeros(CLIPS, bool), time, losses, losses, losses)]))
    assert rows.table.measured[5] == UNREADABLE
    assert set(rows.table.measured[np.arange(CLIPS) != 5]) == {1}


def test_a_clip_that_once_cannot_be_read_keeps_what_was_measured_before() -> None:
    rows, (shows, _) = laid_out(), shown()
    rows.add(shows)
    bucket, time, held_out = np.arange(CLIPS) % 2, np.full(CLIPS, 900.0), np.zeros(CLIPS, bool)
    for lost in (False, True):
        losses = np.where((np.arange(CLIPS) == 5) & lost, np.nan, 1.0)
        rows.note_measured(Measured.joined([Measured(UIDS, bucket, held_out, time, losses, 2 * losses, losses)]))
    row = rows.of_uids(UIDS)
    assert rows.table.measured[row[5]] == 1
    assert set(rows.table.measured[np.delete(row, 5)]) == {2}
    np.testing.assert_allclose(rows.table.gain[row], np.log(2), rtol=1e-6)


@given(clips=st.integers(1, 40), kinds=st.integers(1, 3), size=st.integers(1, 9), rounds=st.integers(1, 30))
def test_all_clips_take_turns_in_micro_batches_of_one_kind(clips: int, kinds: int, size: int, rounds: int) -> None:
    kind, measured, batch_size = np.arange(clips) % kinds, np.zeros(clips, np.int16), np.full(clips, 4)
    measured[0] = UNREADABLE
    for _ in range(rounds):
        chosen = choose(measured, measured.astype(np.float64), kind, batch_size, size)
        every = np.concatenate([np.zeros(0, np.int64), *chosen])
        assert len(set(every.tolist())) == len(every) == min(size, clips - 1)
        assert all(len(batch) <= 4 and len(set(kind[batch])) == 1 for batch in chosen)
        measured[every] += 1
    trained = measured[1:]
    # A kind whose turn it is fills its micro-batch, also with clips that had theirs.
    assert np.ptp(trained) <= 1 + 4 * (kinds > 1) if len(trained) else True


@given(steps=st.integers(1, 400), batch=st.integers(1, 64), is_known=st.booleans(), knows_captions=st.booleans())
def test_a_share_of_the_clips_is_measured_when_they_tell_most(
    steps: int, batch: int, is_known: bool, knows_captions: bool
) -> None:
    visits, early = 0, 0
    begins = steps * (_BEGIN_WITH_WEIGHTS if knows_captions else _BEGIN)
    for step in range(1, steps + 1):
        end, trained = steps if is_known else None, step * batch
        most = affordable(step=step, end=end, trained=trained, share=SHARE, knows_captions=knows_captions)
        if visits + batch <= most:
            assert step >= begins or not is_known
            visits += batch
        assert visits <= SHARE * trained * (_HASTE if is_known else 1)
        if step <= begins + steps / _HASTE + 1:
            early = visits
    assert visits <= SHARE * steps * batch
    assert visits > SHARE * steps * batch - batch
    assert visits <= early + batch or not is_known


@given(
    clips=st.integers(1, 400),
    batch=st.integers(1, 9),
    epochs=st.integers(1, 200),
    weights=st.sampled_from([None, "base"]),
)
def test_a_lora_is_measured_beside_its_base_where_all_clips_can_be(
    clips: int, batch: int, epochs: int, weights: str | None
) -> None:
    """In no more than their share of the passes; a small set at once, as what is known by heart grows."""
    end = max(min(clips * epochs // batch, 2000), 1)
    recipe = SimpleNamespace(
        train=TrainConfig.model_validate({"max_steps": end}), lora=True, model=SimpleNamespace(weights=weights)
    )
    training: Any = SimpleNamespace(data=SimpleNamespace(recipe=recipe))
    rounds = ClipLossRounds(training)
    vars(rounds)["_candidates"] = range(clips), None
    spec = SimpleNamespace(micro_batches_per_step=1, batch_sizes=[batch])
    found: list[tuple[int, bool]] = []
    for step in range(1, end + 1):
        position: Any = SimpleNamespace(global_step=step, spec=spec, segment=1)
        rounds.account.trained = step * batch
        size, with_base = rounds._round_if_due(position)
        if size:
            found.append((min(size, clips), with_base))
            rounds.account.visits += min(size, clips)
    spare = SHARE * 2 / 3 * end * batch - max(clips, batch * math.ceil(8 / batch))
    assume(abs(spare) > 1e-6)  # at the border itself, rounding decides whether the base is measured too
    passes = sum(size * (3 if with_base else 2) for size, with_base in found)
    assert passes <= 2 * SHARE * end * batch
    enough = weights is not None and spare > 0
    assert {with_base for _, with_base in found} <= {enough}
    if enough:
        assert found[0][0] == clips or clips > 256
        assert sum(size for size, _ in found) >= clips


@pytest.mark.parametrize("measured", [None, []])
def test_a_network_trains_on_after_a_round_that_is_cut_short(
    monkeypatch: pytest.MonkeyPatch, measured: list[Measured] | None
) -> None:
    """But for the parts that do not train anyway."""
    network = torch.nn.ModuleList([torch.nn.Dropout(), torch.nn.Dropout().eval()])
    training: Any = SimpleNamespace(
        world=World(0, 1, torch.device("cpu")),
        model=SimpleNamespace(state=SimpleNamespace(module=network)),
        stops=lambda: False,
        log=SimpleNamespace(event=lambda *_, **__: None),
    )
    monkeypatch.setattr(ClipLossRounds, "_round_if_due", lambda *_: (1, False))
    monkeypatch.setattr(ClipLossRounds, "_choose", lambda *_: [])
    monkeypatch.setattr(ClipLossRounds, "_measure", lambda *_, **__: None if network.training else measured)
    account: Any = SimpleNamespace(bring_together=lambda *_: None, visits=0, last=0)
    ClipLossRounds(training, account).metrics(
        Pause(cast(Any, SimpleNamespace(global_step=4)), cast(Any, None), lambda: False)
    )
    assert [each.training for each in network.modules()] == [True, True, False]
    assert account.last == (0 if measured is None else 4)


def test_clips_that_are_least_late_are_measured_after_all_new_ones() -> None:
    measured, late = np.ones(40, np.int16), np.full(40, 3.0)
    measured[[3, 5]], late[[7, 30]], late[9] = 0, (0.1, 0.5), np.inf
    kind, batch_size = np.zeros(40, np.int64), np.full(40, 4)
    chosen = choose(measured, late, kind, batch_size, 40)
    assert np.concatenate(chosen)[:4].tolist() == [3, 5, 7, 30]
    assert np.concatenate(chosen)[-1] == 9


def test_a_loss_far_off_moves_the_usual_one_little() -> None:
    rows, (shows, _) = laid_out(), shown()
    rows.add(shows)
    before = rows.usual.at(np.array([500.0]), np.array([0]))[0]
    one = shows.take(slice(-1, None))._replace(step=np.array([STEPS + 1]), time=np.array([500.0]), bucket=np.array([0]))
    rows.add(one._replace(loss=np.array([1e6])))
    assert rows.usual.at(np.array([500.0]), np.array([0]))[0] < 1.2 * before


def test_the_usual_loss_follows_the_timestep() -> None:
    """Up to its last one: of a loss that rises evenly, the usual one does, too."""
    usual = _UsualLoss(Usual(), ["a"])
    times = np.random.default_rng(0).uniform(0, 1000, 4000)
    usual.add(1 + times / 1000, times, np.zeros(len(times), np.int64))
    asked = np.array([0.0, 250.0, 800.0, 990.0])
    assert usual.at(asked, np.zeros(4, np.int64)) == pytest.approx(1 + asked / 1000, abs=0.05)
