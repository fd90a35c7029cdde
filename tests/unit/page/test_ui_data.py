"""The data page, asked as the browser does, over real small footage."""

import io
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import media_makers
import numpy as np
import page_client
import places
import prepare_files as made
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reelworks.annexes.page import clips, distributions, guard, jobs, library, thumbnails
from reelworks.annexes.page.datasets import Datasets
from reelworks.annexes.page.jobs import PageJob
from reelworks.annexes.page.workspace import key_of
from reelworks.core.shape import Shape
from reelworks.data.buckets.assign import Reason
from reelworks.data.loader import position, segment_record
from reelworks.data.media import decode
from reelworks.data.media.decode import Request
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData


def gradient(path, size):
    """A picture of (height, width) whose places can be told apart, with its caption."""
    down, across = np.mgrid[0 : size[0], 0 : size[1]]
    pixels = np.stack([255 * across / size[1], 255 * down / size[0], 0 * down], axis=-1)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    path.with_suffix(".txt").write_text("a gradient", encoding="utf-8")


class Page:
    """A folder with footage and a recipe, and the page that serves it."""

    def __init__(self, folder):
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir()
        gradient(self.data / "wide.png", (96, 160))
        gradient(self.data / "tall.png", (130, 96))
        made.picture(self.data / "silent.png", caption=None)
        made.picture(self.data / "tiny.png", (8, 8), caption="a speck")
        made.clip(self.data / "long.mp4", 9, (96, 128), caption="a Dog runs")
        made.clip(self.data / "short.mp4", 3)
        (self.data / "torn.mp4").write_bytes(b"no video")
        self.file = folder / "mine.toml"
        self.written = page_client.small_recipe(f"{folder.as_posix()}/run", f"{folder.as_posix()}/data")
        self.file.write_text(self.written, encoding="utf-8")
        self.key = key_of(self.file)
        self.client = page_client.client(folder)

    @property
    def recipe(self):
        return recipe_file.load(self.file)

    def scan(self):
        dataset.scan_recipe(self.recipe)
        return self

    def get(self, path="", **parameters):
        return self.client.get(f"/api/data/{self.key}{path}", params=parameters)

    def post(self, path, **body):
        return self.client.post(f"/api/data/{self.key}{path}", json=body)

    def about(self):
        self.get("/clips")  # waits until they are read
        return self.get().json()

    def clips(self, **parameters):
        return self.get("/clips", **parameters).json()

    def clip(self, name):
        (found,) = [clip for clip in self.clips()["clips"] if clip["path"] == f"data/{name}"]
        return found

    def details(self, name):
        return self.get(f"/clips/{self.clip(name)['id']}").json()

    def picture(self, name, kind="thumbnail", **parameters):
        return self.get(f"/clips/{self.clip(name)['id']}/{kind}.webp", **parameters)

    def close(self):
        context = self.client.app.state.context
        context.library.close()
        context.pictures.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A page that no test changes."""
    page = Page(tmp_path_factory.mktemp("shown")).scan()
    yield page
    page.close()


@pytest.fixture
def page(tmp_path):
    page = Page(tmp_path).scan()
    yield page
    page.close()


def facets(about):
    return {facet["name"]: facet for facet in about["facets"]}


def test_the_numbers_of_each_filter_add_up_to_all_clips(shown):
    about = shown.about()
    assert about["clips"] == 7
    assert {name: sum(facet["counts"]) for name, facet in facets(about).items()} == dict.fromkeys(facets(about), 7)


def test_a_filter_chooses_as_many_clips_as_the_number_beside_it_says(shown):
    for facet in shown.about()["facets"]:
        for value, count in zip(facet["values"], facet["counts"], strict=True):
            found = shown.clips(**{facet["name"]: value["id"]})
            assert found["total"] == len(found["clips"]) == count


def test_numbers_beside_a_filter_count_what_the_other_filters_choose(shown):
    found = shown.clips(kind="video", reason="too_short")
    assert found["total"] == 1
    assert sum(found["counts"]["kind"]) == shown.clips(reason="too_short")["total"]
    assert sum(found["counts"]["reason"]) == shown.clips(kind="video")["total"]
    assert sum(found["counts"]["bucket"]) == 1


def test_reasons_and_buckets_are_those_of_the_plan(shown):
    data = RecipeData.open(shown.recipe)
    result, row = data.assignment(0)
    names = data.rows.labels(row)
    wanted = {
        name: (None if bucket < 0 else data.table.buckets[bucket].name, reason)
        for name, bucket, reason in zip(names, result.bucket.tolist(), result.reason.tolist(), strict=True)
    }
    seen = {clip["path"]: clip for clip in shown.clips()["clips"]}
    assert {name: clip["bucket"] for name, clip in seen.items()} == {name: one[0] for name, one in wanted.items()}
    assert {name for name, clip in seen.items() if not clip["reason"]} == {n for n, one in wanted.items() if not one[1]}
    assert seen["data/silent.png"]["reason"][0] == "no_caption"
    assert shown.details("short.mp4")["why"] == "3 frames of 64 × 48; needs 5; nearest entry: 48px ×5"


def test_texts_are_found_in_paths_and_captions_whatever_their_case(shown):
    assert [clip["path"] for clip in shown.clips(q="DOG")["clips"]] == ["data/long.mp4", "data/short.mp4"]
    assert [clip["path"] for clip in shown.clips(q="wide.P")["clips"]] == ["data/wide.png"]
    assert shown.clips(q="no such text")["total"] == 0


LETTERS = st.text(st.sampled_from("abAB éÉ."), max_size=8)


@settings(max_examples=60)
@given(st.lists(st.none() | LETTERS, max_size=30), LETTERS.filter(bool), st.integers(0, 3))
def test_search_finds_the_texts_that_contain_the_wanted_one(texts, wanted, first):
    column = pa.array(texts, pa.large_string()).slice(first)
    found = clips.contains(column, wanted).tolist()
    assert found == [text is not None and wanted.lower() in text.lower() for text in texts[first:]]


def test_orders(shown):
    paths = [clip["path"] for clip in shown.clips(sort="name")["clips"]]
    assert paths == sorted(paths)
    lost = [clip["lost"] for clip in shown.clips(sort="cropped")["clips"]]
    assert lost == sorted(lost, reverse=True)
    assert lost[0] > 0.1
    sizes = [np.prod(clip["source"]) for clip in shown.clips(sort="largest")["clips"]]
    assert sizes == sorted(sizes, reverse=True)
    assert shown.clips(sort="longest")["clips"][0]["path"] == "data/long.mp4"


def test_pages_of_clips_join_to_all_clips(shown):
    pages = [clip for offset in (0, 3, 6) for clip in shown.clips(offset=offset, limit=3)["clips"]]
    assert pages == shown.clips()["clips"]


@pytest.mark.parametrize("step", [1e-3, 0.2, 5.0, 1000.0])
def test_bars_are_no_wider_than_a_round_number_that_is_enough(step):
    assert distributions._round_step(step * (1 + 1e-12)) == pytest.approx(step)


def test_distributions_count_each_readable_clip_once(shown):
    found = shown.get("/distributions").json()
    assert found["clips"] == 6
    videos = {"frames", "fps", "duration"}
    totals = {one["name"]: sum(one["counts"]) for one in found["bars"]}
    assert totals == {name: 2 if name in videos else 6 for name in totals}
    assert sum(cell[2] for cell in found["sizes"]["cells"]) == 6


@pytest.mark.parametrize("name", ["wide.png", "tall.png"])
def test_a_thumbnail_shows_what_training_reads(shown, name):
    answer = shown.picture(name)
    assert answer.headers["content-type"] == "image/webp"
    thumbnail = Image.open(io.BytesIO(answer.content))
    shape = shown.clip(name)["shape"]
    assert thumbnail.width / thumbnail.height == pytest.approx(shape[0] / shape[1], rel=0.03)
    data = RecipeData.open(shown.recipe)
    row = data.rows.labels(np.arange(len(data.rows))).index(f"data/{name}")
    clips = shown.client.app.state.context.library.clips(shown.key)
    read = Image.fromarray(decode.load(thumbnails.training_request(clips, row))[0]).resize(thumbnail.size)
    assert np.abs(np.asarray(read, int) - np.asarray(thumbnail.convert("RGB"), int)).mean() < 4


def milliseconds(animation):
    """How long all frames are shown; encoders join frames that look the same."""
    total = 0
    for number in range(animation.n_frames):
        animation.seek(number)
        animation.load()
        total += animation.info["duration"]
    return total


def test_a_loop_is_as_fast_as_the_clip_and_is_sent_once(shown):
    loop = shown.picture("long.mp4", "loop")
    assert milliseconds(Image.open(io.BytesIO(loop.content))) == pytest.approx(1000 * 5 / 24, abs=5)
    whole = Image.open(io.BytesIO(shown.picture("long.mp4", "whole").content))
    window = shown.details("long.mp4")["reading"]["window"]
    assert whole.width * window["width"] / (whole.height * window["height"]) == pytest.approx(4 / 3, rel=0.03)
    address = f"/api/data/{shown.key}/clips/{shown.clip('long.mp4')['id']}/loop.webp"
    again = shown.client.get(address, headers={"If-None-Match": loop.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_picture_that_was_replaced_is_not_shown_as_it_was(page):
    """A browser that has it asks each time."""
    former = page.picture("tall.png")
    assert "no-cache" in former.headers["cache-control"]
    address = f"/api/data/{page.key}/clips/{page.clip('tall.png')['id']}/thumbnail.webp"
    known = {"If-None-Match": former.headers["etag"]}
    assert page.client.get(address, headers=known).status_code == 304
    gradient(page.data / "tall.png", (150, 96))
    assert page.client.get(address, headers=known).status_code != 304


def test_a_short_clip_that_is_left_out_is_shown_to_its_end(page):
    """And not beyond, where it has no frame."""
    page.file.write_text(page.written.replace("[[dataset]]", '[[dataset]]\nfilter = "fps == 0"'), encoding="utf-8")
    clip = page.clip("short.mp4")
    view = page.client.app.state.context.library.clips(page.key)
    row = view.row_of(clip["id"])
    assert view.bucket[row] < 0
    request = thumbnails.training_request(view, row)
    assert (request.shape.num_frames - 1) * request.step <= 2
    assert page.picture("short.mp4", "loop").status_code == 200


def test_no_process_decodes_once_the_page_has_ended(tmp_path):
    shown = Page(tmp_path).scan()
    context = shown.client.app.state.context
    with shown.client:
        assert shown.picture("wide.png").status_code == 200
        assert context.pictures._pool is not None
    assert context.pictures._pool is None


def test_a_loop_begins_and_ends_with_the_frames_that_training_begins_and_ends_with(tmp_path):
    file = media_makers.write_video(tmp_path / "counts.mp4", num_frames=20)
    request = Request(file, is_image=False, shape=Shape(9, 48, 64), step=1.5, first_frame_draw=0.7)
    read = media_makers.numbers(decode.load(request))
    few = media_makers.numbers(decode.load(thumbnails.reduce_request(request, 32, 4)))
    assert (few[0], few[-1], len(few)) == (read[0], read[-1], 4)


def test_a_clip_that_cannot_be_read_tells_why(shown):
    answer = shown.picture("torn.mp4")
    assert answer.status_code == 400
    assert answer.json()["code"] == "clip-unreadable"
    assert shown.details("torn.mp4")["reading"] is None


ODD_KEYS = ["%2e%2e", "%2e%2e%2fdata", "catalog-..", "catalog-%2e%2e%2f%2e%2e", "a\x00b", "0" * 16, "catalog-"]
ODD_CLIPS = ["-1", "99999", "9" * 30, "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "1e3", "0x1", "%00"]


@pytest.mark.parametrize("key", ODD_KEYS)
@pytest.mark.parametrize("rest", ["", "/clips", "/clips/0", "/clips/0/thumbnail.webp"])
def test_a_key_that_is_none_names_nothing(shown, key, rest):
    for written in {quote(key, safe="%"), quote(key, safe="")}:
        assert shown.client.get(f"/api/data/{written}{rest}").status_code in (400, 404)


@pytest.mark.parametrize("clip", ODD_CLIPS)
def test_a_number_that_is_none_names_no_clip(shown, clip):
    for rest in ("", "/thumbnail.webp", "/whole.webp"):
        assert shown.client.get(f"/api/data/{shown.key}/clips/{clip}{rest}").status_code in (400, 404, 422)
    ordinal = shown.clip("wide.png")["id"]
    for kind in ("wide.png", "..%2f..%2fmine.toml", "thumbnail.webp%2f.."):
        answer = shown.client.get(f"/api/data/{shown.key}/clips/{ordinal}/{kind}")
        assert answer.status_code in (400, 404, 422)


def test_a_file_that_a_link_leads_outside_to_is_not_shown(tmp_path):
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    page = Page(tmp_path / "inside")
    gradient(tmp_path / "outside" / "secret.png", (96, 128))
    places.link(page.data / "link.png", tmp_path / "outside" / "secret.png")
    places.link(page.data / "link.txt", tmp_path / "outside" / "secret.txt")
    page.scan()
    assert page.about()["outside"] == []  # the folder itself may be read
    answer = page.picture("link.png")
    assert (answer.status_code, answer.json()["code"]) == (400, "outside-of-folders")
    written = page.post(f"/clips/{page.clip('link.png')['id']}/caption", text="changed")
    assert (written.status_code, written.json()["code"]) == (400, "outside-of-folders")
    assert (tmp_path / "outside" / "secret.txt").read_text(encoding="utf-8") == "a gradient"
    page.close()


def test_a_file_that_is_gone_is_told(page):
    ordinal = page.clip("wide.png")["id"]
    (page.data / "wide.png").unlink()
    answer = page.get(f"/clips/{ordinal}/thumbnail.webp")
    assert (answer.status_code, answer.json()["problem"]) == (404, "the file is gone")


def test_a_dataset_outside_of_the_folders_is_named(tmp_path):
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    page = Page(tmp_path / "inside")
    shutil.move(page.data, tmp_path / "outside" / "data")
    page.file.write_text(page.file.read_text(encoding="utf-8").replace("inside/data", "outside/data"), encoding="utf-8")
    page.scan()
    assert page.about()["outside"] == [str(tmp_path / "outside" / "data")]
    details = page.details("wide.png")
    assert not details["can_write_caption"]
    assert str(tmp_path / "outside") in details["caption_source"]
    page.close()


def test_a_caption_is_written_beside_the_clip_and_read_by_the_next_scan(page):
    former = page.clip("wide.png")["id"]
    answer = page.post(f"/clips/{former}/caption", text="  zwei Wörter\n").json()
    assert (page.data / "wide.txt").read_text(encoding="utf-8") == "zwei Wörter\n"
    assert answer["clip"]["caption"] == page.clip("wide.png")["caption"] == "zwei Wörter"
    again = dataset.scan_recipe(page.recipe)
    assert (again.changed, again.unchanged) == (0, 7)
    assert not list(page.data.glob(".*.tmp"))


def test_a_clip_without_a_caption_is_planned_once_it_has_one(page):
    assert "silent.txt, which is made" in page.details("silent.png")["caption_source"]
    answer = page.post(f"/clips/{page.clip('silent.png')['id']}/caption", text="a grey square").json()
    assert answer["clip"]["reason"] is None
    assert answer["file"] == "data/silent.txt"


def test_captions_of_lists_and_of_several_files_are_not_written(page):
    (page.data / "wide.1.txt").write_text("another", encoding="utf-8")
    details = page.details("wide.png")
    assert not details["can_write_caption"]
    assert "several files" in details["caption_source"]
    answer = page.post(f"/clips/{details['id']}/caption", text="new")
    assert answer.json()["code"] == "caption-not-in-file"
    (page.folder / "list.csv").write_text("path,text\ndata/wide.png,from the list\n", encoding="utf-8")
    page.file.write_text(page.file.read_text(encoding="utf-8").replace('/data"', '/list.csv"'), encoding="utf-8")
    page.scan()
    page.client.app.state.context.library.clips(page.key, fresh=True)
    (line,) = page.clips()["clips"]
    details = page.get(f"/clips/{line['id']}").json()
    assert (details["caption"], details["can_write_caption"]) == ("from the list", False)
    assert "list.csv" in details["caption_source"]


def test_a_scan_that_fails_is_told_beside_the_former_clips_until_another_one(page):
    """Once the catalog is newer, by whatever scanned since, it is of no interest any more."""
    queue = page.client.app.state.context.jobs
    failed = PageJob("000001", "scan", "mine", (), str(page.folder), 0.0, "failed", code=2, subject=page.key)
    queue.folder.mkdir(parents=True, exist_ok=True)
    (queue.folder / "000001.log").write_text("error: no such folder\n", encoding="utf-8")
    catalog = Path(page.recipe.catalog_folder) / "catalog.json"
    for after, told in ((+5, "error: no such folder"), (-5, None)):
        jobs.write(queue.folder / "000001.json", replace(failed, ended=catalog.stat().st_mtime + after))
        about = page.about()
        assert about["state"] == "ready"
        assert (about["job"] and about["job"]["error"]) == told


def test_a_clip_that_is_left_out_is_in_no_plan_until_it_is_taken_back(page):
    def planned():
        data = RecipeData.open(page.recipe)
        return set(data.rows.labels(data.rows_at(data.entries(0).ordinal)))

    before, footage = planned(), {file: file.read_bytes() for file in page.data.iterdir()}
    address = f"/clips/{page.clip('wide.png')['id']}"
    assert page.post(f"{address}/leave-out").json()["reason"][0] == "in_exclude_file"
    assert planned() == before - {"data/wide.png"}
    assert page.clips()["counts"]["reason"][2] == 1
    added = [line for line in page.file.read_text(encoding="utf-8").splitlines() if line not in page.written]
    assert added == [f'exclude_file = "{page.folder}/mine.exclude.txt"']
    page.post(f"/clips/{page.clip('tall.png')['id']}/leave-out")
    assert planned() == before - {"data/wide.png", "data/tall.png"}
    assert page.post(f"{address}/take-back").json()["reason"] is None
    assert planned() == before - {"data/tall.png"}
    assert {file: file.read_bytes() for file in page.data.iterdir()} == footage


def test_comments_of_an_exclude_list_are_kept(page):
    listed = page.folder / "mine.exclude.txt"
    listed.write_text("# not good:\ndata/tall.png # blurred\n\ndata/long.mp4\n", encoding="utf-8")
    page.file.write_text(f'exclude_file = "{listed}"\n{page.file.read_text(encoding="utf-8")}', encoding="utf-8")
    page.post(f"/clips/{page.clip('wide.png')['id']}/leave-out")
    page.post(f"/clips/{page.clip('tall.png')['id']}/take-back")
    assert listed.read_text(encoding="utf-8") == "# not good:\n\ndata/long.mp4\ndata/wide.png\n"


def test_a_clip_that_is_taken_back_takes_no_other_clip_along(page):
    """A file's name may have what begins a comment behind another file's."""
    made.picture(page.data / "wide.png #2.png")
    page.scan()
    page.client.app.state.context.library.clips(page.key, fresh=True)
    names = ("wide.png", "wide.png #2.png")
    for name in names:
        page.post(f"/clips/{page.clip(name)['id']}/leave-out")
    page.post(f"/clips/{page.clip(names[0])['id']}/take-back")
    assert (page.folder / "mine.exclude.txt").read_text(encoding="utf-8") == f"data/{names[1]}\n"


def test_a_clip_that_is_left_out_has_a_line_of_its_own(page):
    """Also where the last line of the list has no end, as editors may leave it."""
    listed = page.folder / "mine.exclude.txt"
    listed.write_text("data/long.mp4", encoding="utf-8")
    page.file.write_text(f'exclude_file = "{listed}"\n{page.file.read_text(encoding="utf-8")}', encoding="utf-8")
    page.post(f"/clips/{page.clip('wide.png')['id']}/leave-out")
    assert listed.read_text(encoding="utf-8") == "data/long.mp4\ndata/wide.png\n"


def test_nothing_is_changed_without_the_token(shown):
    page = shown
    former = {file: file.read_bytes() for file in page.folder.rglob("*") if file.is_file()}
    for path in ("caption", "leave-out", "take-back"):
        address = f"/api/data/{page.key}/clips/{page.clip('wide.png')['id']}/{path}"
        assert page.client.post(address, json={"text": "new"}, headers={guard.TOKEN_HEADER: ""}).status_code == 401
    assert {file: file.read_bytes() for file in page.folder.rglob("*") if file.is_file()} == former


def test_a_recipe_without_a_catalog_and_a_wrong_one_say_what_to_do(tmp_path):
    page = Page(tmp_path)
    assert page.get().json()["state"] == "none"
    assert page.get("/clips").json()["code"] == "no-catalog"
    page.file.write_text(page.file.read_text(encoding="utf-8") + "colour = 1\n", encoding="utf-8")
    answer = page.get()
    assert answer.status_code == 400
    assert answer.json()["remedy"]
    (row,) = page.client.get("/api/data").json()
    assert row["state"] == "error"
    page.close()


def test_a_catalog_alone_is_shown_with_whole_frames(shown):
    address = f"/api/data/catalog-{key_of(shown.folder / 'run' / 'catalog')}"
    clips = shown.client.get(f"{address}/clips").json()["clips"]
    assert {clip["path"] for clip in clips} == {clip["path"] for clip in shown.clips()["clips"]}
    (wide,) = [clip for clip in clips if clip["path"] == "data/wide.png"]
    picture = Image.open(io.BytesIO(shown.client.get(f"{address}/clips/{wide['id']}/thumbnail.webp").content))
    assert picture.width / picture.height == pytest.approx(160 / 96, rel=0.03)
    answer = shown.client.post(f"{address}/clips/{wide['id']}/leave-out")
    assert answer.json()["code"] == "not-a-recipe"


def test_companions_are_shown_with_the_crop_of_their_clip(page):
    (page.folder / "masks").mkdir()
    gradient(page.folder / "masks" / "wide.png", (96, 160))
    page.file.write_text(
        page.file.read_text(encoding="utf-8").replace('/data"', f'/data"\nloss_mask = "{page.folder}/masks"'),
        encoding="utf-8",
    )
    page.scan()
    page.client.app.state.context.library.clips(page.key, fresh=True)
    assert [one["kind"] for one in page.details("wide.png")["companions"]] == ["loss_mask"]
    own, beside = (
        Image.open(io.BytesIO(page.picture("wide.png", "strip", **more).content)).convert("RGB")
        for more in ({}, {"companion": "loss_mask"})
    )
    assert np.abs(np.asarray(own, int) - np.asarray(beside, int)).mean() < 4  # the mask has the same gradient
    missing = page.details("tall.png")
    assert missing["reason"][0] == "no_companion"
    assert "no loss_mask" in missing["companions"][0]["problem"]
    assert page.picture("tall.png", "strip", companion="loss_mask").status_code == 404


def test_clips_that_no_run_has_trained(page):
    run, data = RunFolder(page.folder / "run"), RecipeData.open(page.recipe)
    run.create()
    log, begun = EventLog(run.events_file), position.begin_epoch(data, data.plan_spec(1, 1), epoch=0)
    kept, plan = run.keep_recipe(recipe_file.dump(page.recipe)), begun.plan
    log.write("start", step=0, resumed_from=None, recipe=kept, world_size=1)
    segment_record.begin(run, data, begun, kept)
    told = {"data_restarts": 0, "epoch": 0, "segment": 0, "planned": begun.counts.planned, "plan_steps": plan.num_steps}
    log.write("epoch", step=0, plan=plan.digest(), **told)
    where = plan.places(int(plan.micro_batches(0)[0]))
    log.write("step", step=1, epoch=0, plan_step=0, clips=where.stop - where.start, applied=True)
    trained = {clip["path"] for clip in page.clips(coverage="trained")["clips"]}
    assert trained == set(data.rows.labels(data.rows_at(plan.ordinal[where])))
    never = {clip["path"] for clip in page.clips(coverage="never")["clips"]}
    assert trained | never == {clip["path"] for clip in page.clips()["clips"]}
    assert not trained & never


def test_kept_pictures_stay_within_their_bound(shown):
    context = shown.client.app.state.context
    clips, kept = context.library.clips(shown.key), thumbnails.Pictures(context.workspace, cache_bytes=300)
    kept._pool = context.pictures._open_pool()
    rows = [clips.row_of(shown.clip(name)["id"]) for name in ("wide.png", "tall.png")] * 2
    random.Random(0).shuffle(rows)
    for row in rows:
        for kind in ("thumbnail", "whole"):
            tag, request = kept.tag(clips, row, kind)
            kept.picture(tag, request, kind, 40)
            assert sum(map(len, kept._kept.values())) == kept._kept.currsize <= 300


def test_the_data_and_the_plan_of_a_recipe_share_one_dataset(page):
    context = page.client.app.state.context
    shown = context.library.clips(page.key, patience=20).data
    assert context.plans.open(page.key).data is shown
    os.utime(Path(page.recipe.catalog_folder) / "catalog.json", ns=(0, 0))
    again = context.plans.open(page.key).data
    assert again is not shown
    assert context.library.clips(page.key, fresh=True, patience=20).data is again


def test_a_changed_clip_of_many_is_shown_at_once(page):
    shown = page.client.app.state.context.library
    changed = shown.clips(page.key, patience=20).with_reason(0, Reason.IN_EXCLUDE_FILE)
    shown.replace(page.key, changed)
    assert shown.clips(page.key) is changed


def test_clips_that_were_forgotten_are_read_again(page, monkeypatch):
    monkeypatch.setattr(library, "_MOST_ROWS", 8)
    (page.folder / "other.toml").write_text(page.written, encoding="utf-8")
    small = library.Library(page.client.app.state.context.workspace, Datasets())
    keys = [page.key, key_of(page.folder / "other.toml")]
    for key in keys * 2:  # seven clips each
        assert len(small.clips(key, patience=20)) == 7
        assert [known for known in keys if known in small._clips] == [key]
    monkeypatch.setattr(library, "_MOST_ROWS", 5)  # fewer than one has
    larger = library.Library(page.client.app.state.context.workspace, Datasets())
    assert len(larger.clips(page.key, patience=20)) == 7
    small.close()
    larger.close()


def test_the_page_names_only_files_of_its_folder(shown):
    assert Path(shown.details("wide.png")["file"]).is_relative_to(shown.folder)
