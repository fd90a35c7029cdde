"""Whatever a file is called, no box is drawn in place of a character: another font has it, or it is escaped."""

from __future__ import annotations

import io
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from reelworks.core.shape import Shape
from reelworks.data.media import lettering
from reelworks.reports import sheet
from reelworks.training.coverage.contact_sheet import SampleView

SIZE = 14
NAMES = (
    "grün ähre.mp4",
    "u\u0308ber.mp4",
    "中文 clip.mp4",
    "привет",
    "a\nb\x1b[31m",
    "\u202eabc",
    "😀",
    "\U0010fffe",
    "\ud800",
)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=12))
@example("".join(NAMES))
@pytest.mark.slow
def test_every_character_that_is_drawn_is_in_its_font(text):
    pieces = lettering.pieces(text, SIZE)
    for part, font in pieces:
        missing = [character for character in part if character != " " and not lettering.has(font, character)]
        assert missing == [], (part, font.getname())
    drawn = "".join(part for part, _ in pieces)
    assert drawn.isprintable()
    for character in unicodedata.normalize("NFC", text):
        assert character in drawn or f"{ord(character):x}" in drawn.lower() or repr(character)[1:-1] in drawn
    assert lettering.width(text, SIZE) == pytest.approx(sum(font.getlength(part) for part, font in pieces))


def test_without_fonts_of_the_system_a_name_is_escaped_and_without_escapes_it_is_plain(monkeypatch):
    monkeypatch.setattr(lettering, "_paths", tuple)
    lettering._known.cache_clear()
    (part,) = (part for part, _ in lettering.pieces("a 中.mp4", SIZE))
    lettering._known.cache_clear()
    assert part == r"a \u4e2d.mp4"
    font = ImageFont.load_default(SIZE)
    assert lettering.has(font, "a")
    assert not lettering.has(font, "中")


@pytest.mark.parametrize("name", NAMES)
def test_a_contact_sheet_is_drawn_as_wide_as_its_names(name):
    frames = np.zeros((1, 8, 8, 3), np.uint8)
    view = SampleView(
        path=name * 20, caption="", error="", source=Shape(1, 8, 8), whole=frames[0], window=(0, 0, 8, 8),
        frames=frames, first_frame=0, step=1.0, lost=0.0,
    )  # fmt: skip
    drawn = Image.open(io.BytesIO(sheet.draw([view], Shape(1, 8, 8))))
    assert drawn.width >= lettering.width(name * 20, SIZE)
    pen = ImageDraw.Draw(image := Image.new("L", (600, 30)))
    lettering.write(pen, (2, 2), name, SIZE, 255)
    assert np.asarray(image).any()
