"""The model is shown captions in its dataset's form, with the numbers of the clip's own file."""

import prepare_files as files

from reelworks.data.loader import decode_requests


def test_clips_are_shown_their_numbers_and_pictures_only_those_that_they_have(tmp_path):
    """A frame rate is told of a clip, not of a picture; a dataset without a form shows captions as they are."""
    for name in ("told", "plain"):
        files.clip(tmp_path / name / "a.mp4", 9, caption="a dog, running")
        files.picture(tmp_path / name / "b.png", caption="a cat.")
    form = "{text} frame rate: {fps:.0f}, height: {height:.0f}."
    datasets = [{"path": str(tmp_path / "told"), "caption": form}, {"path": str(tmp_path / "plain")}]
    data = files.opened(files.recipe(tmp_path, dataset=datasets))
    shown = {
        (data.rows.dataset[r].as_py(), data.rows.path[r].as_py()): decode_requests.caption_of_row(data, r)
        for r in range(4)
    }
    assert shown == {
        ("told", "a.mp4"): "a dog, running frame rate: 24, height: 48.",
        ("told", "b.png"): "a cat. height: 48.",
        ("plain", "a.mp4"): "a dog, running",
        ("plain", "b.png"): "a cat.",
    }


def test_a_trigger_word_stands_where_the_template_or_the_caption_has_its_place(tmp_path):
    """Once, and before captions for which neither has a place, also where they have a word that begins as it does."""
    forms = {"own": "photo of [trigger], {text}", "plain": "photo, {text}", "empty": "photo of [name]. {text}"}
    for name in forms:
        files.picture(tmp_path / name / "a.png", caption="no rwmugs")
        files.picture(tmp_path / name / "b.png", caption="a blue [trigger]")
    datasets = [
        {"path": str(tmp_path / name), "caption": form, "trigger": "" if name == "empty" else "rwmug"}
        for name, form in forms.items()
    ]
    data = files.opened(files.recipe(tmp_path, dataset=datasets))
    shown = {data.rows.label(row): decode_requests.caption_of_row(data, row) for row in range(6)}
    assert shown == {
        "own/a.png": "photo of rwmug, no rwmugs",
        "own/b.png": "photo of rwmug, a blue rwmug",
        "plain/a.png": "photo, rwmug no rwmugs",
        "plain/b.png": "photo, a blue rwmug",
        "empty/a.png": "photo of . no rwmugs",
        "empty/b.png": "photo of . a blue ",
    }


def test_clips_without_a_caption_are_trained_where_something_stands_for_it(tmp_path):
    """Also with an empty text, which leaves the template's own words; elsewhere they are left out by name."""
    for name in ("words", "empty", "plain"):
        files.picture(tmp_path / name / "a.png", caption=None)
        files.picture(tmp_path / name / "b.png", caption="")
        files.picture(tmp_path / name / "c.png", caption="a cat")
    form = "rwcat, {text}"
    datasets = [
        {"path": str(tmp_path / "words"), "caption": form, "missing_caption": "mug cup"},
        {"path": str(tmp_path / "empty"), "caption": form, "missing_caption": ""},
        {"path": str(tmp_path / "plain"), "caption": form},
    ]
    data = files.opened(files.recipe(tmp_path, dataset=datasets))
    trained = data.rows.find(data.entries(0).uid).tolist()
    shown = sorted((data.rows.dataset[r].as_py(), decode_requests.caption_of_row(data, r)) for r in trained)
    assert shown == [
        *[("empty", text) for text in ("rwcat", "rwcat", "rwcat, a cat")],
        ("plain", "rwcat, a cat"),
        *[("words", text) for text in ("rwcat, a cat", "rwcat, mug cup", "rwcat, mug cup")],
    ]
