"""What a preview shows is what training reads: the same frames, the crop where it says, the same beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import prepare_files as made
import pytest
from PIL import Image

from reelworks.data.loader import decode_requests, prefetch
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode import load
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.schedule.plan import Samples
from reelworks.inference.generate import writers
from reelworks.reports import sheet
from reelworks.training.coverage import contact_sheet
from reelworks.training.plan import discarded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("contact")
    data = path / "data"
    data.mkdir()
    generator = np.random.default_rng(0)
    for i, size in enumerate([(60, 100), (48, 200), (100, 60), (64, 64)]):
        pixels = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(data / f"{i}.png")
        (data / f"{i}.txt").write_text(f"noise {i}", encoding="utf-8")
    made.clip(data / "long.mp4", 40, (60, 100))
    made.clip(data / "wide.mp4", 20, (48, 96))
    return path


@pytest.fixture(scope="module", params=["center", "random", "flipped"])
def data(folder, request):
    crop, keys = (
        ("random", {"flip": 0.7, "jitter_contrast": 0.5}) if request.param == "flipped" else (request.param, {})
    )
    changes = {"data": {"crop": crop, "num_workers": 0}, "dataset": [{"path": str(folder / "data")} | keys]}
    changes["buckets"] = {"max_crop": 0.9, "incomplete_batch": "pad"}
    return made.opened(made.recipe(folder, **changes))


def test_the_window_of_the_whole_frame_is_the_frame_that_training_reads(data):
    entries = data.entries(0)
    lost = discarded.lost_shares(data, data.rows_at(entries.ordinal), entries.bucket)
    assert len(entries) == 6
    for place in range(len(entries)):
        one = entries.take(np.array([place]))
        (look,) = contact_sheet.sample_views(data, one, lost[[place]], epoch=3)
        rows = data.rows.find(one.uid)
        words = decode_requests.clip_hash(data, rows, one.copy, epoch=3)
        (request,) = decode_requests.decode_requests(data, rows, words, int(one.bucket[0]))
        assert np.array_equal(look.frames, load(request))
        top, left, height, width = look.window
        assert np.array_equal(look.whole[top : top + height, left : left + width], look.frames[0])
        inside = height * width / (look.whole.shape[0] * look.whole.shape[1])
        assert look.lost == pytest.approx(1 - inside, abs=0.02)


def test_a_preview_shows_the_clips_of_the_plan_in_the_buckets_that_train_them(data):
    plan = data.plan(data.plan_spec(1, 1), 0)
    shown, assigned = discarded.planned(plan), data.entries(0)
    assert dict(zip(shown.uid.tolist(), shown.bucket.tolist(), strict=True)) == dict(
        zip(assigned.uid.tolist(), assigned.bucket.tolist(), strict=True)
    )


def test_the_one_that_loses_most_comes_first_and_the_choice_is_stable(data):
    entries = data.entries(0)
    lost = discarded.lost_shares(data, data.rows_at(entries.ordinal), entries.bucket)
    chosen = contact_sheet.choose(data, entries, lost, 3)
    assert chosen[0] == np.argmax(lost)
    assert len(set(chosen.tolist())) == 3
    assert contact_sheet.choose(data, entries, lost, 99).tolist()[:3] == chosen.tolist()
    assert len(contact_sheet.choose(data, entries, lost, 99)) == len(entries)


def test_draws_follow_the_recipe(data):
    rows, copies = np.arange(len(data.rows)), np.zeros(len(data.rows), dtype=np.int64)
    first, again, other = (
        decode_requests.decode_requests(data, rows, decode_requests.clip_hash(data, rows, copies, epoch=epoch), 0)
        for epoch in (0, 0, 1)
    )
    assert first == again
    assert [r.first_frame_draw for r in first] != [r.first_frame_draw for r in other]
    centred = data.recipe.data.crop == "center"
    assert all((r.crop_draw == (0.5, 0.5)) == centred for r in first)


def test_a_file_that_is_gone_is_told(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "data", tmp_path / "data")
    data = made.opened(made.recipe(tmp_path, buckets={"max_crop": 0.9}))
    entries = data.entries(0)
    (tmp_path / "data" / "long.mp4").unlink()
    row = data.rows.path.to_pylist().index("long.mp4")
    place = entries.uid.tolist().index(int(data.rows.uid[row]))
    (look,) = contact_sheet.sample_views(data, entries.take(np.array([place])), np.zeros(1), epoch=0)
    assert look.frames is None
    assert look.error == "No such file or directory"


def beside_recipe(folder, kind):
    """Five clips with masks, for a model that is shown first frames, or as many pictures with controls for one that takes them."""
    generator = np.random.default_rng(1)
    for name in ("data", "control", "masks"):
        (folder / name).mkdir()
    for i in range(5):
        many = generator.integers(0, 256, (14, 60, 100, 3), dtype=np.uint8)
        mask = np.zeros((14, 60, 100, 3), dtype=np.uint8)
        mask[:, :, : 20 * i] = 255
        (folder / "data" / f"{i}.txt").write_text("noise", encoding="utf-8")
        if kind == "clips" and i < 4:
            writers.write_video(folder / "data" / f"{i}.mp4", many, 24.0)
            writers.write_video(folder / "masks" / f"{i}.mp4", mask, 24.0)
        else:
            Image.fromarray(many[0]).save(folder / "data" / f"{i}.png")
            Image.fromarray(many[1]).save(folder / "control" / f"{i}.png")
            Image.fromarray(mask[0]).save(folder / "masks" / f"{i}.png")
    dataset = {"path": str(folder / "data"), "loss_mask": str(folder / "masks")}
    model = {"name": "wan-i2v-tiny", "image_encoder": "unread"}
    if kind == "pictures":
        dataset, model = dataset | {"control": str(folder / "control")}, {"name": "flux-control-tiny"}
    return made.recipe(
        folder,
        dataset=[dataset],
        model=model,
        autoencoder={"stride": 4},
        text_encoder={"dim": 16, "max_length": 6, "pooled_dim": 8},
        bucket=[{"resolution": "48x48", "num_frames": [1, 9] if kind == "clips" else 1, "batch_size": 5}],
        data={"crop": "random", "num_workers": 0},
    )


@pytest.mark.parametrize("kind", ["clips", "pictures"])
def test_what_is_shown_beside_clips_is_what_training_gets_beside_them(tmp_path, kind):
    """Companions and first frames are those of the stream, pixel by pixel; a mask that shows nothing fails in both."""
    data = made.opened(beside_recipe(tmp_path, kind))
    plan, pool, shown = data.plan(data.plan_spec(1, 1), 0), DecodePool(0, 60.0), 0
    work = [
        one
        for plan_step in range(plan.num_steps)
        for one in StepSource(data, 0, 1).requests_of_step(plan, 0, plan_step)
    ]
    for batch in prefetch.read_ahead(work, pool):
        uids, copies = batch.request.uids, batch.request.copies
        entries = Samples(
            uids, copies, np.zeros(len(uids), np.int64), np.full(len(uids), batch.request.bucket, np.int64)
        )
        looks, reasons = (contact_sheet.sample_views(data, entries, np.zeros(len(uids)), epoch=0), dict(batch.failures))
        for place, look in enumerate(looks):
            assert look.error == reasons.get(place, "")
            beside = {one.kind: one.frames for one in look.beside}
            if look.error:
                assert str(Path("masks", "0.")) in look.error
                continue
            shown += 1
            first = {"first_frame"} if len(look.frames) > 1 else set()
            assert beside.keys() == batch.companions.keys() | first
            for name, frames in batch.companions.items():
                assert np.array_equal(beside[name], frames[place])
            if first:
                assert np.array_equal(beside["first_frame"], batch.frames[place, :1])
            sheet.draw([look], batch.request.shape)
    pool.close()
    assert shown == 4
