r"""Write names on pictures: each character with a font that has it, and as an escape such as `\u4e2d` where no font has.

Pillow's own font has Latin letters alone. Fonts of the system are looked at when a name has other characters.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import ImageDraw, ImageFont

Font = ImageFont.FreeTypeFont
_NOBODYS = "\U0010ffff"  # a code point that is no character, which fonts draw as one that they lack
_SUFFIXES = (".ttf", ".otf", ".ttc")
_MANY_SCRIPTS = [
    "cjk",
    "notosans",
    "dejavusans",
    "unicode",
    "pingfang",
    "hiragino",
    "msyh",
    "yugoth",
    "malgun",
    "droid",
]
_MOST_FONTS = 200


def pieces(text: str, size_px: int) -> list[tuple[str, Font]]:
    """Divide a text by the fonts that have its characters, if none has all; characters that none has are escaped."""
    known = [_known(character, size_px) for character in unicodedata.normalize("NFC", text)]
    shown = "".join(part for part, _ in known)
    for font in dict.fromkeys(font for _, font in known):
        if all(character == " " or has(font, character) for character in shown):
            return [(shown, font)]
    return [("".join(shown for shown, _ in group), font) for font, group in groupby(known, key=lambda one: one[1])]


def width(text: str, size_px: int) -> float:
    """Return the width of a text in pixels."""
    return sum(font.getlength(part) for part, font in pieces(text, size_px))


def write(pen: ImageDraw.ImageDraw, place: tuple[float, float], text: str, size_px: int, colour: Any) -> None:
    """Write a text whose top left corner is at a place, on one line."""
    left, top = place
    baseline = top + _own(size_px).getmetrics()[0]
    for part, font in pieces(text, size_px):
        pen.text((left, baseline), part, fill=colour, font=font, anchor="ls")
        left += font.getlength(part)


@lru_cache(maxsize=4096)
def _known(character: str, size_px: int) -> tuple[str, Font]:
    """Return a character, or its escape, with a font that has it."""
    own = _own(size_px)
    if character == " ":
        return character, own
    if character.isprintable():  # not those that break lines or turn the direction of writing
        if has(own, character):
            return character, own
        for path in _paths():
            font = _opened(path, size_px)
            if font is not None and has(font, character):
                return character, font
    return character.encode("unicode_escape").decode(), own


@lru_cache(maxsize=1 << 14)
def has(font: Font, character: str) -> bool:
    """Return whether a font has a character: it draws it, and otherwise than one that it lacks."""
    drawn = _drawn(font, character)
    return bool(drawn[1]) and drawn != _lacking(font)


@lru_cache(maxsize=_MOST_FONTS)
def _lacking(font: Font) -> tuple[tuple[int, int], bytes]:
    return _drawn(font, _NOBODYS)


def _drawn(font: Font, character: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)


@lru_cache
def _own(size_px: int) -> Font:
    font = ImageFont.load_default(size_px)
    assert isinstance(font, Font)
    return font


@lru_cache(maxsize=_MOST_FONTS)
def _opened(path: Path, size_px: int) -> Font | None:
    with suppress(OSError):  # such as one of coloured pictures, which has other sizes
        return ImageFont.truetype(str(path), size_px)
    return None


@lru_cache
def _paths() -> tuple[Path, ...]:
    """Return fonts of the system, those of many scripts first."""
    found = [path for folder in _folders() for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES]
    words = {path: path.stem.lower().replace("-", "").replace(" ", "") for path in found}
    plain = sorted(
        found, key=lambda path: (not any(word in words[path] for word in _MANY_SCRIPTS), len(path.name), path)
    )
    return tuple(plain[:_MOST_FONTS])


def _folders() -> list[Path]:
    home = Path.home()
    if sys.platform == "darwin":
        return [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    if sys.platform == "win32":
        return [Path(os.environ.get("WINDIR", r"C:\Windows")) / "Fonts"]
    data = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    return [*(Path(folder) / "fonts" for folder in data.split(":")), home / ".local/share/fonts"]
