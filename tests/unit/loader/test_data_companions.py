"""Clips and their companions on the way from the recipe to what is read of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prepare_files import clip, opened, picture, recipe
from refused import refused

from reelworks.data.buckets.assign import Reason
from reelworks.data.loader import data_spec, decode_requests, position


def made(tmp_path: Any, **keys: str | float) -> Any:
    """Two datasets, of which only the first has masks."""
    datasets = [
        {"path": str(tmp_path / "data"), "loss_mask": str(tmp_path / "masks")} | keys,
        {"path": str(tmp_path / "more")},
    ]
    return recipe(tmp_path, dataset=datasets, data={"crop": "random"})


@pytest.fixture
def folder(tmp_path: Any) -> Any:
    clip(tmp_path / "data/a.mp4", 20)
    clip(tmp_path / "masks/a.mp4", 20, (24, 32), caption=None)
    picture(tmp_path / "data/b.png")
    picture(tmp_path / "masks/b.png", grey=255, caption=None)
    picture(tmp_path / "data/lost.png")
    picture(tmp_path / "more/c.png")
    return tmp_path


def test_masks_are_read_at_the_draws_of_their_clips(folder: Any) -> None:
    """What chooses frames and crop is the clip's request to the letter; a dataset without masks asks for none."""
    data = opened(made(folder))
    assert data.rows.path.to_pylist() != []
    assert {p.as_posix() for p in (data.rows.file(i) for i in range(len(data.rows)))} == {
        str(folder / name) for name in ("data/a.mp4", "data/b.png", "data/lost.png", "more/c.png")
    }
    rows = np.arange(len(data.rows))
    words = decode_requests.clip_hash(data, rows, np.zeros_like(rows), epoch=3)
    own = decode_requests.decode_requests(data, rows, words, 0)
    masks = decode_requests.companion_requests(data, rows, own)["loss_mask"]
    for request, mask in zip(own, masks, strict=True):
        if request.path.parent.name == "more" or request.path.stem == "lost":
            assert mask is None
            alone = decode_requests.companion_requests(data, rows[[own.index(request)]], [request])
            assert alone == {"loss_mask": (None,)}, "no clip of a batch may have one"
            continue
        assert mask is not None
        assert mask.path == folder / "masks" / request.path.name
        assert (mask.first_frame_draw, mask.crop_draw) == (request.first_frame_draw, request.crop_draw)
        assert (mask.measures, mask.step, mask.shape) == (request.measures, request.step, request.shape)
        assert mask.nearest is not request.nearest is False
    lost = data.rows.path.to_pylist().index("lost.png")
    assert Reason(int(data.excluded[lost])) is Reason.NO_COMPANION
    assert (data.excluded == Reason.NO_COMPANION).sum() == 1


def test_masks_are_mirrored_and_turned_with_their_clips_and_keep_their_colours(folder: Any) -> None:
    data = opened(made(folder, flip=1.0, rotate_degrees=10.0, jitter_brightness=0.5))
    rows = np.arange(len(data.rows))
    words = decode_requests.clip_hash(data, rows, np.zeros_like(rows), epoch=3)
    own = decode_requests.decode_requests(data, rows, words, 0)
    pairs = zip(own, decode_requests.companion_requests(data, rows, own)["loss_mask"], strict=True)
    both = [(request.augmentation, mask.augmentation) for request, mask in pairs if mask is not None]
    assert len(both) == 2
    for ours, theirs in both:
        assert (theirs.flip, theirs.degrees) == (True, ours.degrees)
        assert (ours.degrees == 0, ours.brightness == 1, theirs.brightness == 1) == (False, False, True)


def test_a_changed_mask_changes_the_data_and_not_the_clips(folder: Any) -> None:
    """So that a resume plans anew what is left, and trains nothing twice; where the masks lie shapes no plan."""
    before = opened(made(folder))
    (folder / "masks").rename(folder / "moved")
    moved = opened(made(folder, loss_mask=str(folder / "moved")))
    assert moved.plan_spec(1, 1).digest() == before.plan_spec(1, 1).digest()
    picture(folder / "moved/b.png", grey=40, caption=None)
    after = opened(made(folder, loss_mask=str(folder / "moved")))
    assert after.digest != before.digest
    assert after.rows.uid.tolist() == before.rows.uid.tolist()
    assert after.rows.ordinal.tolist() == before.rows.ordinal.tolist()
    former = type(before).open(made(folder), before.catalog.version)
    assert former.digest == before.digest


@pytest.mark.parametrize("kind", ["control", "source", "loss_mask", "mask", "rejected"])
def test_where_companions_of_any_kind_lie_shapes_no_plan(folder: Any, kind: str) -> None:
    data = opened(made(folder))

    def digest(place: str) -> str:
        datasets = tuple(one.model_copy(update={kind: place}) for one in data.spec.datasets)
        return data_spec.plan_digest(replace(data.spec, datasets=datasets), data.table, data.exclude_list)

    assert digest("here") == digest("there")


def test_companions_that_all_lack_are_said_as_the_reason(folder: Any) -> None:
    """Instead of an empty epoch, the one key that emptied it."""
    picture(folder / "wrong/else.png", caption=None)
    data = opened(made(folder, loss_mask=str(folder / "wrong")))
    assert (data.excluded == Reason.NO_COMPANION).sum() == 3
    with refused("empty-epoch", "dataset", says="3 of 4 clips have no companion file"):
        raise position.no_steps(data)
