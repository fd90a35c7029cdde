"""A filter keeps the rows for which Python itself, asked row by row, would say yes; the rest is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.catalog import filter_expression, filters
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.filter_expression import NUMBERS, TEXTS
from reelworks.catalog.rows import SCHEMA, CatalogRows
from reelworks.core.errors import UserError

_PLAIN: dict[str, Any] = {
    "dataset": "data",
    "root": "/data",
    "kind": "video",
    "size_bytes": 5000,
    "mtime_ns": 0,
    "fingerprint": "f",
    "num_frames": 100,
    "height": 720,
    "width": 1280,
    "fps": 24.0,
    "duration_seconds": 4.0,
    "codec": "h264",
    "pixel_format": "yuv420p",
    "bit_depth": 8,
    "rotation": 0,
    "variable_fps": False,
    "has_alpha": False,
    "caption": "a cat",
    "error": None,
}
_CLIPS: list[dict[str, Any]] = [
    {"path": "a/one.mp4"},
    {"path": "a/two.webm", "height": 360, "width": 640, "codec": "vp9", "fps": 60.0, "caption": "два кота"},
    {"path": "b/three.png", "kind": "image", "codec": "png", "num_frames": 1, "fps": 0.0, "caption": ""},
    {"path": "b/four.mov", "codec": "hevc", "bit_depth": 10, "height": 2160, "width": 3840, "caption": None},
    {"path": "five.mp4", "height": 480, "width": 270, "size_bytes": 2**40, "caption": 'it\'s a "dog"'},
]


def rows() -> CatalogRows:
    full = [
        {**_PLAIN, "ordinal": i, "uid": i, "group": clip["path"], **clip} for i, clip in enumerate(_CLIPS)
    ]
    return CatalogRows.from_table(pa.Table.from_pylist(full, schema=SCHEMA))


def by_python(text: str) -> list[bool]:
    """The same question put to Python, a row at a time."""
    answers = []
    for clip in _CLIPS:
        row = {**_PLAIN, **clip}
        names = {name: row[name] for name in (*NUMBERS, *TEXTS) if name != "caption_length"}
        names["caption"] = row["caption"] or ""
        names |= {"caption_length": len(names["caption"]), "startswith": str.startswith}
        names["contains"] = lambda text, part: part in text
        answers.append(bool(eval(text, {"__builtins__": {}}, names)))
    return answers


@pytest.mark.parametrize(
    "text",
    [
        "height >= 480 and fps > 20 and kind == 'video'",
        "480 <= height < 1080",
        "1 < 2",
        "not (height > 400 or codec == 'vp9')",
        "height * width >= 640 * 360 + 1",
        "width / height > 1.5",
        "-height < -(400 - 10) - +5",
        "codec in ['h264', 'hevc']",
        "codec not in ('h264', 'hevc')",
        "height in [480, 720.0, -1]",
        "height not in [480]",
        "'png' != codec",
        "startswith(path, 'a/')",
        "contains(caption, 'cat') or contains(codec, 'vp')",
        'contains(caption, "\\"dog")',
        "caption_length > 5",
        "caption_length == 8",
        "caption == ''",
        "size_bytes > 1e12 and bit_depth == 8",
        "duration_seconds * fps != num_frames",
        "(height > 400\n and width > 1000)",
    ],
)
def test_a_filter_says_what_python_would_say(text: str) -> None:
    assert filters.keeps(rows(), text).tolist() == by_python(text)


_NUMBER = st.recursive(
    st.sampled_from(["height", "width", "fps", "bit_depth", "480", "24.5", "3"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=4,
)
_TRUTH = st.recursive(
    st.tuples(_NUMBER, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _NUMBER).map(" ".join)
    | st.sampled_from(["kind == 'image'", "codec in ['png', 'vp9']", "contains(path, 'o')"]),
    lambda inner: (
        inner.map(lambda t: f"not ({t})")
        | st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})")
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(_TRUTH)
def test_any_filter_says_what_python_would_say(text: str) -> None:
    assert filters.keeps(rows(), text).tolist() == by_python(text)


_SCORED = _TRUTH.map(lambda text: text.replace("bit_depth", "aes"))


@settings(max_examples=100, deadline=None)
@given(_SCORED)
def test_a_clip_without_a_score_is_kept_only_if_it_would_be_with_any(text: str) -> None:
    """What a filter says of a clip that lacks a score does not rest on that score."""

    def kept(score: float) -> np.ndarray:
        return filters.keeps(replace(rows(), scores={"aes": np.full(len(_CLIPS), score)}), text)

    without = kept(np.nan)
    for score in (-1e9, 0.0, 3.0, 24.5, 480.0, 1e9):
        assert (kept(score) >= without).all()


def test_a_division_by_zero_is_infinite_and_no_error() -> None:
    assert filters.keeps(rows(), "num_frames / fps > 1e9").tolist() == [False, False, True, False, False]
    assert not filters.keeps(rows(), "(fps - fps) / (fps - fps) == 0").any()
    assert filters.keeps(rows(), "1 / 0 > 5").all()


def test_a_filter_may_be_asked_of_no_rows() -> None:
    none = rows().take(np.zeros(0, dtype=np.int64))
    assert filters.keeps(none, "height > 1 and contains(path, 'a')").tolist() == []
    assert filters.keeps(none, "1 < 2").tolist() == []


def test_a_row_tells_what_the_filter_looked_at() -> None:
    text = "height > width / 2 and codec == 'vp9' and height * caption_length < 9"
    found = filters.values(rows(), 3, text)
    assert found == {"height": 2160, "width": 3840, "codec": "hevc", "caption_length": 0}


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("hight > 3", "`hight` is not a column", 'did you mean "height"? (known: bit_depth, caption'),
        ("zzz > 3", "`zzz` is not a column", "known: bit_depth, caption"),
        ("height >", "not an expression", "use comparisons"),
        ("   ", "not an expression", "use comparisons"),
        ("height = 3", "not an expression", "use comparisons"),
        ("path == '\\d'", "not an expression", "use comparisons"),
        ("height\0", "not an expression", "use comparisons"),
        ("height", "`height` is a number, and true or false is needed", "compare it"),
        ("height and fps > 3", "`height` is a number", "compare it"),
        ("not path", "`path` is a text", "compare it"),
        ("height > 'big'", "`'big'` is a text, and a number is needed", "use comparisons"),
        ("path + 1 > 3", "`path` is a text, and a number is needed", "use comparisons"),
        ("path < 'b'", "`path` is a text, which has no order", "== suits texts"),
        ("path == caption", "`path` is no column compared with a text", "codec == 'h264'"),
        ("'a' == 'a'", "no column compared with a text", "codec == 'h264'"),
        ("kind == 'vidoe'", '"vidoe", which is no kind', 'did you mean "video"?'),
        ("kind in ['video', 'gif']", '"gif", which is no kind', "known: image, video"),
        ("height is 3", 'is compared with "is"', "write =="),
        ("height > True", "`True` is neither a number nor a text", "use comparisons"),
        ("height > None", "`None` is neither", "use comparisons"),
        ("height > 1e999", "too large a number", "1e308"),
        ("height > 1" + "0" * 400, "too large a number", "1e308"),
        ("height % 2 == 0", "`height % 2` is of a form that filters do not have", "use comparisons"),
        ("2 ** height > 1", "`2 ** height` is of a form", "use comparisons"),
        ("height in codec", "`codec` is not a list of values", "height in [480, 720]"),
        ("'cat' in caption", "`caption` is not a list of values", "use contains"),
        ("height in []", "`[]` is not a list of values", "height in [480, 720]"),
        ("height in [width]", "`[width]` is not a list of values", "write out"),
        ("height in ['a']", "`'a'` is a text, and a number is needed", "use comparisons"),
        ("startwith(path, 'a')", "`startwith` is not a function", 'did you mean "startswith"?'),
        ("path.startswith('a')", "`path.startswith` is not a function", 'did you mean "startswith"?'),
        ("__import__('os').system('true')", "is not a function", "known: contains, startswith"),
        ("contains(path)", "takes a column and a text", 'contains(path, "text")'),
        ("contains(kind, 'v')", "takes a column and a text", "path, caption or codec"),
        ("contains(path, codec)", "takes a column and a text", "path, caption or codec"),
        ("contains(path, 3)", "`3` is a number, and a text is needed", "use comparisons"),
        ("[h for h in path] == 3", "is of a form", "use comparisons"),
        ("path[0] == 'a'", "`path[0]` is of a form", "use comparisons"),
        ("(lambda: 1)() > 0", "is not a function", "known: contains, startswith"),
        ("contains(path, '\\ud800')", "holds half a letter", "write the letter"),
        ("not " * 300 + "height > 1", "nested too deeply", "shorter"),
        ("(" * 3000 + "height" + ")" * 3000, "not an expression", "use comparisons"),
    ],
)
def test_all_else_is_refused_with_the_part_and_the_way_out(text: str, problem: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        filter_expression.parse(text)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert (caught.value.field, caught.value.value) == ("dataset.filter", text)


def test_a_recipe_is_refused_for_its_filter_before_any_catalog_is_there() -> None:
    assert DatasetConfig(path="a", filter="height > 3").filter == "height > 3"
    with pytest.raises(ValueError, match="`hight` is not a column"):
        DatasetConfig(path="a", filter="hight > 3")
