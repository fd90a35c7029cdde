"""A filter keeps the rows for which Python itself, asked row by row, would say yes; the rest is refused."""

from __future__ import annotations

import ast
import operator
from typing import Any

import catalog_rows
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.core.errors import UserError
from reelworks.data.catalog import filter_expression
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.filter_expression import NUMBERS, TEXTS
from reelworks.data.catalog.query import filter_failures, filters
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import SCHEMA

_PLAIN = catalog_rows.row(0, {"size_bytes": 5000, "duration_seconds": 4.0, "caption": "a cat"})
_CLIPS: list[dict[str, Any]] = [
    {"path": "a/one.mp4"},
    {"path": "a/two.webm", "height": 360, "width": 640, "codec": "vp9", "fps": 60.0, "caption": "два кота"},
    {"path": "b/three.png", "kind": "image", "codec": "png", "num_frames": 1, "fps": 0.0, "caption": ""},
    {"path": "b/four.mov", "codec": "hevc", "bit_depth": 10, "height": 2160, "width": 3840, "caption": None},
    {"path": "five.mp4", "height": 480, "width": 270, "size_bytes": 2**40, "caption": 'it\'s a "dog"'},
]


def rows() -> CatalogRows:
    full = [{**_PLAIN, "ordinal": i, "uid": i, "group": clip["path"], **clip} for i, clip in enumerate(_CLIPS)]
    return CatalogRows.from_table(pa.Table.from_pylist(full, schema=SCHEMA))


def by_python(text: str) -> list[bool]:
    """The same question put to Python, a row at a time."""
    answers = []
    for clip in _CLIPS:
        known = {**_PLAIN, **clip}
        names = {name: known[name] for name in (*NUMBERS, *TEXTS) if name != "caption_length"}
        names["caption"] = known["caption"] or ""
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


@given(_TRUTH)
def test_any_filter_says_what_python_would_say(text: str) -> None:
    assert filters.keeps(rows(), text).tolist() == by_python(text)


_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def by_kleene(node: ast.AST, row: dict[str, Any]) -> Any:
    """A part of a filter for one row; None where a number it rests on is not there, as Kleene's tables have it."""
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, str) else np.float64(value)
        case ast.Name(id=name):
            return row[name]
        case ast.Call(func=ast.Name(id=name), args=[column, ast.Constant(value=word)]):
            return row[column.id].startswith(word) if name == "startswith" else word in row[column.id]
        case ast.UnaryOp(op=op, operand=operand):
            value = by_kleene(operand, row)
            return None if value is None else not value if isinstance(op, ast.Not) else -value
        case ast.BinOp(left=left, op=op, right=right):
            sides = by_kleene(left, row), by_kleene(right, row)
            result = None if None in sides else _OPERATORS[type(op)](*sides)
            return None if result is None or np.isnan(result) else result
        case ast.BoolOp(op=op, values=values):
            decisive = isinstance(op, ast.Or)
            found = [by_kleene(value, row) for value in values]
            return decisive if decisive in found else None if None in found else not decisive
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            links = zip([left, *comparators], ops, comparators, strict=False)
            found = [_link_by_kleene(*link, row) for link in links]
            return False if False in found else None if None in found else True
    raise AssertionError(ast.dump(node))


def _link_by_kleene(left: ast.expr, op: ast.cmpop, right: ast.expr, row: dict[str, Any]) -> bool | None:
    one = by_kleene(left, row)
    if isinstance(right, ast.List):
        inside = None if one is None else one in [by_kleene(item, row) for item in right.elts]
        return inside if inside is None or isinstance(op, ast.In) else not inside
    other = by_kleene(right, row)
    return None if one is None or other is None else bool(_OPERATORS[type(op)](one, other))


_NUMBER_OR_NONE = st.recursive(
    st.sampled_from(["height", "fps", "aes", "motion", "caption_length", "480", "0", "1e200", "-24.5"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
        | inner.map(lambda t: f"-({t})")
    ),
    max_leaves=5,
)
_COMPARED = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
_TRUTH_OR_NONE = st.recursive(
    st.tuples(_NUMBER_OR_NONE, _COMPARED, _NUMBER_OR_NONE).map(" ".join)
    | st.tuples(_NUMBER_OR_NONE, _COMPARED, _NUMBER_OR_NONE, _COMPARED, _NUMBER_OR_NONE).map(" ".join)
    | st.tuples(
        _NUMBER_OR_NONE, st.sampled_from(["in", "not in"]), st.sampled_from(["[0, 480]", "[-0.0]", "[-24.5]"])
    ).map(" ".join)
    | st.sampled_from(["kind == 'image'", "'cat' != caption", "codec not in ['png']", "contains(path, 'o')"]),
    lambda inner: (
        inner.map(lambda t: f"not ({t})")
        | st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})")
    ),
    max_leaves=8,
)
_SCORES = st.lists(st.sampled_from([np.nan, -0.0, 0.0, 3.0, 480.0]), min_size=len(_CLIPS), max_size=len(_CLIPS))


@settings(max_examples=settings().max_examples * 3 // 2)
@given(_TRUTH_OR_NONE, _SCORES)
def test_what_is_not_there_makes_a_filter_true_of_a_row_only_by_the_rules_of_kleene(
    text: str, scores: list[float]
) -> None:
    """Without scores in some rows, with results of arithmetic that are none."""
    tree = ast.parse(text, mode="eval").body
    expected = []
    for clip, score in zip(_CLIPS, scores, strict=True):
        row = {**_PLAIN, **clip}
        row["caption"] = row["caption"] or ""
        row |= {"caption_length": len(row["caption"]), "motion": None}
        row |= {name: np.float64(row[name]) for name in NUMBERS}
        row["aes"] = None if np.isnan(score) else np.float64(score)
        with np.errstate(all="ignore"):
            expected.append(by_kleene(tree, row) is True)
    scored = rows().replaced(scores={"aes": np.array(scores)})
    assert filters.keeps(scored, text).tolist() == expected


@pytest.mark.slow
def test_chains_and_lists_may_be_long() -> None:
    assert filters.keeps(rows(), " and ".join(["height > 400"] * 20_000)).tolist() == [True, False, True, True, True]
    paths = [f"{i}.mp4" for i in range(5000)] + ["five.mp4"]
    assert filters.keeps(rows(), f"path in {paths}").tolist() == [False] * 4 + [True]
    assert filters.keeps(rows(), f"height in {list(range(400, 800))}").tolist() == [True, False, True, False, True]


_SCORED = _TRUTH.map(lambda text: text.replace("bit_depth", "aes"))


@given(_SCORED)
def test_a_clip_without_a_score_is_kept_only_if_it_would_be_with_any(text: str) -> None:
    """What a filter says of a clip that lacks a score does not rest on that score."""

    def kept(score: float) -> np.ndarray:
        return filters.keeps(rows().replaced(scores={"aes": np.full(len(_CLIPS), score)}), text)

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


def scored(scores: list[float]) -> CatalogRows:
    return rows().replaced(scores={"aes": np.array(scores)})


def failing(among: CatalogRows, text: str) -> list[tuple[int, str]]:
    """Each row that a filter leaves out, and the parts that it fails."""
    return [
        (i, part) for i, part in enumerate(filter_failures.failed_parts(among, text).to_pylist()) if part is not None
    ]


@pytest.mark.parametrize(
    ("text", "row", "detail"),
    [
        ("height >= 480", 1, "height 360 < 480; height >= 360 would take it"),
        ("480 <= height < 1080", 1, "height 360 < 480; height >= 360 would take it"),
        ("480 <= height < 1080", 3, "height 2160 >= 1080; height <= 2160 would take it"),
        ("aes > 0.5", 1, "aes 0.41 <= 0.5; aes >= 0.41 would take it"),
        ("aes >= 0.5 and height >= 480", 1,
         "aes 0.41 < 0.5; height 360 < 480; aes >= 0.41 and height >= 360 would take it"),
        ("aes >= 0.5", 2, "aes 0.499999 < 0.5; aes >= 0.499999 would take it"),
        ("aes < 0.5", 3, "aes 0.500001 >= 0.5; aes <= 0.500001 would take it"),
        ("aes > 4.5", 4, "aes > 4.5: the clip has no aes"),
        ("not (height > 400 or codec == 'vp9')", 0, "height 720 > 400; height <= 720 would take it"),
        ("not (height > 400 or codec == 'vp9')", 1, "codec != 'vp9': the clip has codec 'vp9'"),
        ("not contains(caption, 'cat')", 0, "not contains(caption, 'cat'): the clip has caption 'a cat'"),
        ("height in [480, 1080]", 1, "height in [480, 1080]: the clip has height 360"),
        ("height > width", 1, "height > width: the clip has height 360, width 640"),
        ("width * height >= 500 * 2000", 1,
         "width * height is 230400 < 500 * 2000 (width 640, height 360); width * height >= 230400 would take it"),
        ("fps / fps > 2", 2, "fps / fps > 2: the clip has fps 0"),
        ("kind == 'image' or height > 1000", 1,
         "kind == 'image' or height > 1000: the clip has kind 'video', height 360; height >= 360 would take it"),
        ("fps > 30 and (aes > 5 or height > 1000)", 0,
         "fps 24 <= 30; aes > 5 or height > 1000: the clip has aes 4, height 720; "
         "fps >= 24 and (aes >= 4 or height >= 720) would take it"),
        ("1 > 2", 0, "1 > 2: the clip has no value that it asks for"),
    ],
)  # fmt: skip
def test_a_clip_that_a_filter_leaves_out_tells_its_values_and_the_limits_that_would_take_it(
    text: str, row: int, detail: str
) -> None:
    among = scored([4, 0.41, 0.4999999, 0.5000001, np.nan])
    failed = dict(failing(among, text))
    assert filter_failures.details(among.take(np.array([row])), failed[row]) == [detail]


_ANY_SCORES = st.lists(st.just(np.nan) | st.floats(-1e6, 1e6), min_size=len(_CLIPS), max_size=len(_CLIPS))


@given(_SCORED, _ANY_SCORES)
def test_a_row_fails_every_part_that_is_told_and_passes_with_the_limits_that_would_take_it(
    text: str, scores: list[float]
) -> None:
    """The parts are exactly what is missing: with their limits moved to the row's values, the whole filter takes it."""
    among = scored(scores)
    failed = failing(among, text)
    assert [row for row, _ in failed] == np.flatnonzero(~filters.keeps(among, text)).tolist()
    for row, part in failed:
        one = among.take(np.array([row]))
        assert filter_failures.failed_parts(one, part).to_pylist() == [part]
        (limits,) = filter_failures.limits_that_take(one, part).to_pylist()
        (detail,) = filter_failures.details(one, part)
        assert (limits is not None) == detail.endswith("would take it")
        if limits is not None:
            assert filters.keeps(one, limits).all(), (text, limits)
            assert limits in detail


def test_rows_are_told_by_the_parts_that_they_fail() -> None:
    parts = filter_failures.failed_parts(rows(), "height >= 480 and width >= 400 and fps < 50")
    assert parts.to_pylist() == [None, "height >= 480 and fps < 50", None, None, "width >= 400"]
    many = " and ".join(f"height > {limit}" for limit in range(400, 500))
    (row, failed), *more = failing(rows(), many)
    assert (row, failed) == (1, many)
    assert [row for row, _ in more] == [4]


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
        ("height", "`height` is a number, but true or false is needed", "compare it"),
        ("height and fps > 3", "`height` is a number", "compare it"),
        ("not path", "`path` is a text", "compare it"),
        ("height > 'big'", "`'big'` is a text, but a number is needed", "use comparisons"),
        ("path + 1 > 3", "`path` is a text, but a number is needed", "use comparisons"),
        ("path < 'b'", "`path` is a text, which has no order", "texts with =="),
        ("path == caption", "`path` is not a column compared with a text", "codec == 'h264'"),
        ("'a' == 'a'", "not a column compared with a text", "codec == 'h264'"),
        ("kind == 'vidoe'", '"vidoe", which is not a kind', 'did you mean "video"?'),
        ("kind in ['video', 'gif']", '"gif", which is not a kind', "known: image, video"),
        ("height is 3", 'is compared with "is"', "write =="),
        ("height > True", "`True` is neither a number nor text", "use comparisons"),
        ("height > None", "`None` is neither", "use comparisons"),
        ("height > 1e999", "too large a number", "1e308"),
        ("height > 1" + "0" * 400, "too large a number", "1e308"),
        ("height % 2 == 0", "`height % 2` is not supported in filters", "use comparisons"),
        ("2 ** height > 1", "`2 ** height` is not supported", "use comparisons"),
        ("height in codec", "`codec` is not a list of values", "height in [480, 720]"),
        ("'cat' in caption", "`caption` is not a list of values", "use contains"),
        ("height in []", "`[]` is not a list of values", "height in [480, 720]"),
        ("height in [width]", "`[width]` is not a list of values", "write out"),
        ("height in ['a']", "`'a'` is a text, but a number is needed", "use comparisons"),
        ("startwith(path, 'a')", "`startwith` is not a filter function", 'did you mean "startswith"?'),
        ("path.startswith('a')", "`path.startswith` is not a filter function", 'did you mean "startswith"?'),
        ("__import__('os').system('true')", "is not a filter function", "known: contains, startswith"),
        ("contains(path)", "needs a column and a text", 'contains(path, "text")'),
        ("contains(kind, 'v')", "needs a column and a text", "path, caption or codec"),
        ("contains(path, codec)", "needs a column and a text", "path, caption or codec"),
        ("contains(path, 3)", "`3` is a number, but a text is needed", "use comparisons"),
        ("[h for h in path] == 3", "is not supported", "use comparisons"),
        ("path[0] == 'a'", "`path[0]` is not supported", "use comparisons"),
        ("(lambda: 1)() > 0", "is not a filter function", "known: contains, startswith"),
        ("contains(path, '\\ud800')", "contains half of a surrogate pair", "write the character"),
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
