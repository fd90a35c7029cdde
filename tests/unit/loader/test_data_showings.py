"""How a clip is shown follows from seed, epoch, clip and copy alone: flips, colours, captions and tags."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import prepare_files as files
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plan_summaries import summary

from reelworks.core import hash_rng
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.query import captions
from reelworks.data.loader import decode_requests
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.augment import NO_AUGMENTATION
from reelworks.training.plan import data_advice, plan_report

AUGMENTED: dict[str, Any] = {
    "flip": 0.5,
    "rotate_degrees": 5.0,
    "jitter_brightness": 0.2,
    "jitter_hue": 0.1,
    "captions": "lines",
    "shuffle_tags": True,
    "tag_dropout": 0.3,
    "keep_tags": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("showings")
    for i in range(10):
        files.picture(path / "data" / f"{i}.png", caption=f"kite, red, high, windy, {i}\nballoon, blue, left, {i}")
        files.picture(path / "masks" / f"{i}.png", grey=255, caption=None)
        files.picture(path / "before" / f"{i}.png", caption=None)
    return path


def opened(folder, *, data=None, model="stdit3-tiny", **keys: Any):
    dataset = {"path": str(folder / "data"), "repeats": 2} | keys
    changes: dict[str, Any] = {"data": {"crop": "random"} | (data or {}), "model": {"name": model}}
    if "source" in keys:  # such models take pictures only
        changes["bucket"] = [{"resolution": "48px", "num_frames": 1, "batch_size": 3}]
    return files.opened(files.recipe(folder, dataset=[dataset], **changes))


def shown(data, world: int, epoch: int) -> dict[tuple[int, int, int], Any]:
    """What every clip and copy is read as, from the micro-batches of all ranks."""
    plan = data.plan(data.plan_spec(4, 1), epoch)
    found = {}
    for rank in range(world):
        for plan_step in range(plan.num_steps):
            for work in StepSource(data, rank, world).requests_of_step(plan, epoch, plan_step):
                if not work.is_idle:
                    keys = zip(work.uids.tolist(), work.copies.tolist(), work.repeat_index.tolist(), strict=True)
                    for i, key in enumerate(keys):
                        requests = [work.requests[i], *(c[i] for c in work.companions.values())]
                        found[key] = requests, work.captions[i], work.crops[i]
    return found


def test_a_clip_is_shown_alike_at_any_world_size_and_anew_in_each_epoch(folder):
    data = opened(folder, loss_mask=str(folder / "masks"), **AUGMENTED)
    whole = shown(data, 1, 3)
    assert len(whole) >= 20
    assert shown(data, 2, 3) == whole == shown(data, 4, 3)
    assert shown(opened(folder, loss_mask=str(folder / "masks"), **AUGMENTED), 1, 3) == whole
    other = shown(data, 1, 4)
    same = [key for key in whole.keys() & other.keys() if whole[key][:2] == other[key][:2]]
    assert not same
    (a, *_), (b, *_) = (next(v for k, v in whole.items() if k[1] == copy) for copy in (0, 1))
    assert a[0].augmentation != b[0].augmentation


def test_companions_are_turned_as_their_clips_and_only_sources_recoloured(folder):
    beside = {"loss_mask": str(folder / "masks"), "source": str(folder / "before")}
    data = opened(folder, model="flux-kontext-tiny", **beside, **AUGMENTED)
    rows = np.arange(len(data.rows))
    own = decode_requests.decode_requests(data, rows, decode_requests.clip_hash(data, rows, rows, epoch=1), 0)
    read = decode_requests.companion_requests(data, rows, own)
    assert {request.augmentation.flip for request in own} == {True, False}
    for request, source, mask in zip(own, read["source"], read["loss_mask"], strict=True):
        assert request.augmentation.degrees != 0
        assert request.augmentation.brightness != 1
        assert source.augmentation == request.augmentation
        assert mask.augmentation == request.augmentation.without_color()
        assert mask.augmentation.degrees == request.augmentation.degrees


def test_values_stay_in_their_ranges_and_fill_them(folder):
    data = opened(folder, **AUGMENTED)
    rows = np.zeros(400, dtype=np.int64)
    words = decode_requests.clip_hash(data, rows, np.arange(400), epoch=0)
    drawn = [request.augmentation for request in decode_requests.decode_requests(data, rows, words, 0)]
    assert 0.4 < np.mean([a.flip for a in drawn]) < 0.6
    for values, most in (
        ([a.degrees for a in drawn], 5.0),
        ([a.brightness - 1 for a in drawn], 0.2),
        ([a.hue for a in drawn], 0.1),
    ):
        assert -most <= min(values) < -0.9 * most
        assert 0.9 * most < max(values) <= most
        assert abs(np.mean(values)) < 0.15 * most
    assert {a.contrast for a in drawn} == {a.saturation for a in drawn} == {1.0}


def test_by_default_nothing_is_augmented_and_no_plan_changes(folder):
    """Plan and crops are the same with all of these keys and without them."""
    plain, busy = opened(folder), opened(folder, **AUGMENTED)
    assert plain.plan_spec(2, 1).digest() == busy.plan_spec(2, 1).digest()
    one, two = shown(plain, 1, 0), shown(busy, 1, 0)
    assert one.keys() == two.keys()
    for key, ((request, *_), caption, _) in one.items():
        assert request.augmentation is NO_AUGMENTATION or request.augmentation == NO_AUGMENTATION
        assert request.crop_draw == two[key][0][0].crop_draw
        assert request.first_frame_draw == two[key][0][0].first_frame_draw
        assert caption.startswith("kite, red, high, windy, ")
        assert "\n" in caption


def test_validation_shows_clips_as_they_are(folder):
    """The first caption, tags in order, no change of the frames, in every epoch."""
    data = opened(folder, **AUGMENTED)
    source, clips = StepSource(data, 0, 1), data.entries(0)
    first, again = (source.build_request(clips, epoch=epoch, augments=False) for epoch in (0, 1))
    assert first.captions == again.captions
    assert all(caption.startswith("kite, red, high, windy, ") and "\n" not in caption for caption in first.captions)
    assert {request.augmentation for request in first.requests} == {NO_AUGMENTATION}


def test_the_top_of_a_taller_picture_is_kept(folder):
    data = opened(folder, data={"crop": "top"})
    rows = np.arange(len(data.rows))
    words = decode_requests.clip_hash(data, rows, rows, epoch=1)
    assert {r.crop_draw for r in decode_requests.decode_requests(data, rows, words, 0)} == {(0.0, 0.5)}
    assert {c.top for c in StepSource(data, 0, 1).build_request(data.entries(0), epoch=0).crops} == {0}


def test_flips_of_captions_that_name_sides_are_warned_of(folder):
    """Once for each dataset that has both."""
    data = opened(folder, flip=0.5)
    (found,) = data_advice.mirrored_sides(data.recipe.dataset, data.rows)
    assert (found.dataset, found.clips) == ("data", 10)
    (line,) = plan_report.warnings(summary(mirrored_sides=[found]))
    assert "10 captions name left or right" in line
    assert data_advice.mirrored_sides(opened(folder).recipe.dataset, data.rows) == []
    assert "captions_lines" in {advice.name for advice in data_advice.advise(data.rows)}


def config(**keys: Any) -> DatasetConfig:
    return DatasetConfig(path="x", **keys)


def word(*words: int) -> Any:
    return hash_rng.hash64(*words)


TAG = st.text(st.characters(blacklist_characters=",", blacklist_categories=["Zs", "Cc", "Cs", "Zl", "Zp"]), min_size=1)


@given(st.lists(TAG, max_size=9), st.integers(0, 10), st.floats(0, 1), st.booleans(), st.integers(0, 2**60))
@example(["a", "b", "c"], 1, 1.0, True, 0)
@settings(max_examples=60, deadline=None)
def test_the_first_tags_stay_and_the_others_are_shuffled_or_dropped(tags, keep, dropout, shuffle, seed):
    made = config(keep_tags=keep, tag_dropout=dropout, shuffle_tags=shuffle)
    text = captions.chosen(", ".join(tags), made, word(seed))
    left = text.split(", ") if text else []
    assert left[:keep] == tags[:keep]
    assert not Counter(left) - Counter(tags)
    if dropout == 0:
        assert Counter(left) == Counter(tags)
    if dropout == 1:
        assert left == tags[:keep]
    if not shuffle:
        remaining = iter(tags)
        assert all(tag in remaining for tag in left)
    assert text == captions.chosen(", ".join(tags), made, word(seed))


def test_tags_are_dropped_at_the_rate_and_in_every_order():
    made = config(keep_tags=1, tag_dropout=0.25, shuffle_tags=True)
    texts = [captions.chosen("a, b, c, d", made, word(i)).split(", ") for i in range(1500)]
    count = Counter(tag for text in texts for tag in text)
    assert count["a"] == 1500
    assert all(abs(count[tag] / 1500 - 0.75) < 0.04 for tag in "bcd")
    orders = Counter("".join(text) for text in texts if len(text) == 4)
    assert sorted(orders) == ["abcd", "abdc", "acbd", "acdb", "adbc", "adcb"]
    assert min(orders.values()) > 0.7 * sum(orders.values()) / 6


def test_which_tags_are_dropped_does_not_depend_on_their_new_order():
    orders = [captions.chosen("a, b, c, d", config(shuffle_tags=True), word(i)).split(", ") for i in range(600)]
    made = config(tag_dropout=0.5, shuffle_tags=True)
    left = [captions.chosen("a, b, c, d", made, word(i)).split(", ") for i in range(600)]
    for place in range(4):
        stays = np.mean([order[place] in some for order, some in zip(orders, left, strict=True)])
        assert abs(stays - 0.5) < 0.08, place


def test_lines_are_drawn_evenly():
    made = config(captions="lines")
    count = Counter(captions.chosen("one\n\n two \nthree", made, word(7, i)) for i in range(3000))
    assert sorted(count) == ["one", "three", "two"]
    assert all(abs(n / 1000 - 1) < 0.12 for n in count.values())
    assert captions.chosen("one\ntwo", made, None) == "one"
    assert captions.chosen("", made, word(0)) == ""


def test_a_caption_without_choices_stays_as_it_is():
    """Also where it has odd spaces, separators and lines."""
    text = " a ,b,,  c\n d,"
    assert captions.chosen(text, config(), word(1)) == text
    assert captions.chosen("x|y", config(tag_separator="|", shuffle_tags=True), word(1)) in ("x| y", "y| x")
    assert captions.chosen("x y", config(tag_separator=" ", tag_dropout=1e-9), word(1)) == "x y"


@pytest.mark.parametrize(
    ("text", "trigger", "expected"),
    [
        ("people wearing masks", "sks", "sks people wearing masks"),
        ("two desks, sksx and 3sks", "sks", "sks two desks, sksx and 3sks"),
        ("a photo of sks.", "sks", "a photo of sks."),
        ("穿着sks的人", "sks", "穿着sks的人"),
        ("sks's dog", "sks", "sks's dog"),
        ("小明在公园里跑步", "小明", "小明在公园里跑步"),
        ("민수가 달린다", "민수", "민수가 달린다"),
        ("המכונית", "מכונית", "מכונית המכונית"),
        ("in <sks> style", "<sks>", "in <sks> style"),
        ("of style<sks>", "<sks>", "of style<sks>"),
        ("a [trigger] here", "sks", "a sks here"),
        ("a [name] here", "", "a  here"),
        ("masks", "", "masks"),
        ("", "sks", "sks"),
        ("a+b", "+", "a+b"),
    ],
)
def test_a_trigger_word_is_put_before_captions_that_lack_it_as_a_word(text, trigger, expected):
    """That it is a part of another word is no use: the text encoder sees the other word."""
    assert captions.chosen(text, config(trigger=trigger), None) == expected


def test_the_template_surrounds_the_chosen_caption(folder):
    data = opened(folder, caption="rwtoy, {text}", **AUGMENTED)
    found = {caption for *_, caption, _ in shown(data, 1, 0).values()}
    assert all(caption.startswith(("rwtoy, kite", "rwtoy, balloon")) for caption in found)
    assert len({caption.split(", ")[1] for caption in found}) == 2


def test_draws_of_before_are_the_draws_of_now(folder):
    """Frames and crops of recipes without the new keys, as they were first drawn."""
    seed, epoch, uids, copies = 42, 5, np.arange(3, dtype=np.uint64), np.array([0, 1, 0])
    words = hash_rng.hash64(seed, epoch, uids, copies)
    for purpose in (hash_rng.Purpose.FIRST_FRAME, hash_rng.Purpose.CROP):
        assert np.array_equal(hash_rng.extend(words, purpose), hash_rng.hash64(seed, epoch, uids, copies, purpose))
    assert [purpose.value for purpose in hash_rng.Purpose][:16] == list(range(1, 17))
