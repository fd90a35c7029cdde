"""The page of a plan: one file without scripts, drawn from the value that `plan --json` prints."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import places
import pytest
import tiny_recipe
from parsed import Page
from PIL import Image
from refused import refused

from reelworks.core import units
from reelworks.reports import plan
from reelworks.reports.run_facts import BarPart
from reelworks.training.plan import plan_forecast
from reelworks.training.plan.rejections import LeftOut, LeftOutClip
from reelworks.training.recipe import dataset, recipe_file

DOGS = places.name("dogs & <b>")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Two datasets in two buckets, padded on nine ranks; one picture is too small."""
    root = tmp_path_factory.mktemp("plan")
    for name, sizes in (("cats", [(64, 48)] * 9 + [(48, 64)] * 2), (DOGS, [(64, 48)] * 4 + [(8, 8)])):
        (root / name).mkdir()
        for i, size in enumerate(sizes):
            Image.new("L", size, i).save(root / name / places.name(f"<i>{i}.png"))
            (root / name / places.name(f"<i>{i}.txt")).write_text("a picture", encoding="utf-8")
    values = tiny_recipe.least(
        output=str(root / "run"),
        dataset=[{"path": str(root / "cats"), "repeats": 2}, {"path": str(root / DOGS)}],
        bucket=[{"resolution": "48px", "num_frames": 1, "batch_size": 3}],
        buckets={"aspect_ratios": ["4:3", "3:4"], "incomplete_batch": "pad"},
        train={"max_epochs": 1},
        validation={"split": 0.0},
    )
    recipe = recipe_file.parse(values)
    dataset.scan_recipe(recipe)
    return plan_forecast.forecast(recipe, 9, epochs=2)


@pytest.fixture(scope="module")
def text(told, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "new" / "plan.html"
    plan.write_plan_page(told, "stage <1>", file)
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_a_plan_is_a_page_of_one_file_without_scripts(page):
    assert page.open == []
    assert page.loads_nothing()
    assert not [tag for tag, _ in page.tags if tag in ("script", "img")]
    ids = {found["id"] for _, found in page.tags if "id" in found}
    assert ids == {found["href"][1:] for tag, found in page.tags if tag == "a"}


def test_what_files_and_recipes_are_called_is_shown_and_never_markup(text, page):
    for name in ("stage <1>", DOGS, f"{DOGS}/{places.name('<i>4.png')}"):
        assert name in page.words
        assert html.escape(name) in text
    assert not re.search("<b>/|<i>4|<1>", text)


def test_the_page_says_the_numbers_of_the_forecast(told, page):
    for fact in plan.headline(told):
        assert f"{fact.label} {fact.value}" in page.words
    for one in (*told.ahead.shares, *told.ahead.datasets):
        shares = [units.percent(getattr(one, f"share_of_{key}")) for key in ("clips", "tokens", "time")]
        assert " ".join([one.name, units.count(one.clips), *shares]) in page.words
    assert [one.showings_per_clip for one in told.ahead.datasets] == [4.0, 2.0]
    assert told.advice.proposals
    for one in told.advice.proposals:
        assert f"{one} gives {one.figures.steps} steps" in page.words
    assert "Nearest entry: 48px ×1 for 1" in page.words
    assert f"Crops cut away {units.percent(told.losses.crop.mean)}" in page.words
    assert "Of the frames of videos" not in page.words


def test_gpus_that_share_a_clip_are_a_column_where_there_are_several(told, text, tmp_path):
    degrees = [2, *(1 for _ in told.buckets[1:])]
    buckets = [replace(one, sequence_degree=n) for one, n in zip(told.buckets, degrees, strict=True)]
    plan.write_plan_page(replace(told, buckets=buckets), "stage", tmp_path / "plan.html")
    shared = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "incomplete</th>" in text
    assert [">GPUs</th>" in one for one in (text, shared)] == [False, True]
    said = Page(shared).words
    for one in buckets:
        cells = f"{one.name} {one.width} × {one.height} × {one.num_frames} {one.batch_size} {one.sequence_degree}"
        assert cells in said


def widths(drawn):
    return [float(width) for width in re.findall(r'width="([\d.]+)"', drawn)]


def test_bars_of_shares_are_full_and_bars_of_waste_are_as_long_as_the_waste(told):
    for _, bar in plan.shares(told):
        assert sum(widths(bar)) == pytest.approx(1000, abs=0.1)
    drawn = dict(plan.waste(told))
    assert [label for label, _, _ in drawn["By epoch"]] == ["epoch 0", "epoch 1"]
    by_world = drawn["By number of GPUs that a run begins with"]
    assert [label for label, _, _ in by_world] == ["8 GPUs", "9 GPUs"]
    for bars in drawn.values():
        longest = max(waste for _, _, waste in bars)
        for _, bar, waste in bars:
            assert sum(widths(bar)) == pytest.approx(1000 * waste / longest, abs=0.1)


def test_the_strip_has_a_column_for_each_step_and_colours_of_the_legend(told, text):
    strip = re.search(r'<svg class="strip".*?</svg>', text)[0]
    left = {float(x) for x in re.findall(r'x="([\d.]+)"', strip)}
    assert len(left) == told.ahead.course.steps == told.steps_per_epoch
    tones = set(re.findall(r"var\(--(\w+)\)", strip))
    legend = re.search(r'<p class="legend">.*?</p>', text)[0]
    assert tones == set(re.findall(r"var\(--(\w+)\)", legend)) == {"c1", "c2"}


def test_a_plan_of_one_epoch_and_few_ranks_has_nothing_to_compare(told, tmp_path):
    first = replace(told.ahead, epochs=told.ahead.epochs[:1])
    alone = replace(told, ahead=first, smaller_worlds=[], advice=replace(told.advice, proposals=None))
    assert plan.waste(alone) == []
    plan.write_plan_page(alone, "alone", tmp_path / "plan.html")
    said = Page((tmp_path / "plan.html").read_text(encoding="utf-8")).words
    assert "Time that trains nothing" not in said
    assert "cure" not in said


def test_parts_of_a_bar_lie_side_by_side():
    drawn = plan.bar([BarPart("a", 0, 0.1, "c1"), BarPart("b", 0, 0.2, "c2")], whole=0.4)
    assert re.findall(r'x="([\d.]+)"', drawn) == ["0.00", "250.00"]
    assert widths(drawn) == [250, 500]


def test_labels_in_svg_are_escaped():
    assert "<b>" not in plan.bar([BarPart("<b>", 1, 1.0, "c1")])


def test_a_page_that_cannot_be_written_is_an_error_with_a_remedy(told, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with refused("file-unwritable", "--html"):
        plan.write_plan_page(told, "stage", tmp_path / "file" / "plan.html")


def test_the_parts_of_a_filter_stand_above_the_clips_that_fail_them(told, tmp_path):
    detail = "aes 4 <= 4.5; aes >= 4 would take it"
    filtered = {
        "reasons": {"filtered": [LeftOutClip("a.png", detail)]},
        "left_out": {"filtered": LeftOut(1, {}, {"aes > 4.5": 1})},
    }
    plan.write_plan_page(replace(told, **filtered), "stage", tmp_path / "plan.html")
    text = html.unescape((tmp_path / "plan.html").read_text(encoding="utf-8"))
    assert "<code>aes > 4.5</code> leaves out 1" in text
    assert f'<code>a.png</code> <span class="quiet">{detail}</span>' in text
