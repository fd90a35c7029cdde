"""A caption says of a clip what its template asks for, and nothing that the clip does not have."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelworks.core.errors import UserError
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.query import template

CLIP = {"fps": 23.976, "height": 480.0, "duration_seconds": 2.5}
PICTURE = {"fps": 0.0, "height": 480.0, "duration_seconds": 0.0}


@pytest.mark.parametrize(
    ("form", "of_clip", "of_picture"),
    [
        ("{text}", "a cat", "a cat"),
        ("{text} frame rate: {fps:.0f}.", "a cat frame rate: 24.", "a cat"),
        (
            "{text} rate: {fps:.1f}, height: {height:.0f}, length: {duration_seconds:.1f}.",
            "a cat rate: 24.0, height: 480, length: 2.5.",
            "a cat height: 480",
        ),
        ("A film. {text} {{{height:.0f}}}.", "A film. a cat {480}.", "A film. a cat {480}."),
        ("{fps:.0f} frames a second {text}", "24 frames a second a cat", "a cat"),
    ],
)
def test_numbers_are_filled_in_and_those_that_a_clip_lacks_are_left_out(form, of_clip, of_picture):
    """Each part stands as a whole or not at all, and no number is cut at its decimal point."""
    assert template.fill(form, "a cat", CLIP) == of_clip
    assert template.fill(form, "a cat", PICTURE) == of_picture


def test_a_score_that_is_missing_is_left_out_and_one_of_0_is_told():
    """0 is no frame rate, but it is a score."""
    form = "{text} aesthetic score: {aes:.1f}, motion score: {flow:.0f}."
    assert template.fill(form, "a cat", {"aes": 0.0, "flow": math.nan}) == "a cat aesthetic score: 0.0"
    assert template.fill(form, "a cat", {"aes": math.nan, "flow": -0.2}) == "a cat motion score: -0."
    assert template.names(form) == {"aes", "flow"}


@pytest.mark.parametrize(
    ("form", "of_none"),
    [
        ("rwmug, {text}", "rwmug"),
        ("{text}, rwmug", "rwmug"),
        ("rwmug {text} cup", "rwmug cup"),
        ("rwmug, {text}, a photo", "rwmug, a photo"),
        ("rwmug, {text}.", "rwmug."),
        ("{text} height: {height:.0f}.", "height: 480."),
        ("{text}", ""),
    ],
)
def test_an_empty_caption_leaves_no_comma_behind(form, of_none):
    """A template reads well without the caption that it is made for."""
    assert template.fill(form, "", PICTURE) == of_none


@given(st.text(min_size=1, max_size=40))
def test_a_caption_is_never_read_as_a_template(text):
    """Braces, commas and full stops of a clip's own caption stay as they are."""
    assert template.fill("{text}", text, {}) == text


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("{text} {aes:.1f}", 'no column "aes"'),
        ("{text} {hight}", 'did you mean "height"'),
        ("{text", "template is invalid"),
        ("{text} {fps:.0q}", "template is invalid"),
        ("{text} {fps:{height}}", "template is invalid .a format cannot contain fields"),
        ("{text} {}", "no column"),
        ("{text.real}", "no column"),
    ],
)
def test_what_is_no_template_is_refused_when_the_recipe_is_read(form, said):
    """A mistake names what is wrong before anything is scanned or trained."""
    with pytest.raises(UserError, match=said):
        template.parse(form)
    with pytest.raises(UserError) as caught:
        DatasetConfig(path="x", caption=form)
    assert caught.value.field == "caption"
