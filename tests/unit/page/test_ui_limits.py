"""Limits on the page: each answer is what a filter with them keeps, and writing one changes the recipe's filter alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import page_client
import prepare_files as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.annexes.page import limits
from reelworks.annexes.page.clips import ClipView
from reelworks.annexes.page.context import Context
from reelworks.annexes.page.workspace import key_of
from reelworks.data.catalog import filter_expression
from reelworks.data.catalog.filter_expression import ColumnRange
from reelworks.data.catalog.query import filters
from reelworks.training.recipe import dataset, recipe_file

SCORES = [3.5, 0.25, None, 7, 4, 4, 9.125, 1, 2, 6.5]
FORMER = "aes > 2 and width >= 32 and (kind == 'image' or aes < 9)"


class Page:
    """A recipe over a list of pictures with scores, and the page that serves it."""

    def __init__(self, folder: Path) -> None:
        for i in range(len(SCORES)):
            made.picture(folder / "data" / f"{i}.png", (16, 16) if i == 3 else (48, 64), grey=20 * i)
        lines = [f"{i}.png,a cat{'s' * (i % 2)},{'' if score is None else score}" for i, score in enumerate(SCORES)]
        (folder / "data" / "meta.csv").write_text("\n".join(["path,text,aes", *lines]), encoding="utf-8")
        self.file = folder / "mine.toml"
        self.written = page_client.small_recipe(f"{folder.as_posix()}/run", f"{folder.as_posix()}/data/meta.csv")
        self.file.write_text(self.written, encoding="utf-8")
        self.key = key_of(self.file)
        self.client = page_client.client(folder)
        dataset.scan_recipe(recipe_file.load(self.file))

    def begin(self, filter: str | None = None) -> Page:
        """Write the recipe as it was, or with a filter."""
        line = "" if filter is None else f'filter = "{filter}"  # mine\n'
        self.file.write_text(self.written.replace("\n[[bucket]]", f"{line}\n[[bucket]]"), encoding="utf-8")
        self.clips(fresh=True)
        return self

    def clips(self, *, fresh: bool = False) -> ClipView:
        context: Context = self.client.app.state.context  # type: ignore[attr-defined]
        return context.library.clips(self.key, fresh=fresh)

    def get(self, path: str, **parameters: Any) -> Any:
        return self.client.get(f"/api/data/{self.key}{path}", params={"dataset": "meta", **parameters})

    def write(self, text: str | None, former: str | None) -> Any:
        body = {"dataset": "meta", "filter": text, "former": former}
        return self.client.post(f"/api/data/{self.key}/filter", json=body)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(tmp_path_factory.mktemp("limits"))


def test_columns_have_their_bars_and_the_limits_of_the_recipe(page: Page) -> None:
    page.begin()
    plain = {column["name"]: column for column in page.get("/columns").json()}
    assert plain.keys() == {"aes", "height", "width", "duration_seconds", "fps"}
    aes = plain["aes"]
    assert (aes["low"], aes["high"], aes["missing"], aes["least"], aes["most"]) == (0.25, 9.125, 1, None, None)
    assert sum(aes["counts"]) == 8
    assert page.write(FORMER, None).status_code == 200
    limited = {column["name"]: column for column in page.get("/columns").json()}
    assert (limited["aes"]["least"], limited["aes"]["most"], limited["width"]["least"]) == (2, None, 32)
    assert limited["aes"]["counts"] == aes["counts"]


def test_a_moved_limit_tells_what_it_keeps_and_which_clips_are_next_to_it(page: Page) -> None:
    page.begin()
    found = page.get("/limits", limit=["aes:3:6.5", "width::"], moved="aes").json()
    assert (found["clips"], found["inside"], found["left_out"]) == (9, 4, {"aes": 5, "width": 0})
    assert (found["former"], found["filter"]) == (None, "aes >= 3 and aes <= 6.5")

    def names(side: str, part: str) -> list[str]:
        return [clip["path"].removeprefix("meta/")[0] for clip in found[side][part]]

    assert names("least", "inside") in (["0", "4", "5", "9"], ["0", "5", "4", "9"])
    assert names("least", "outside") == ["8", "7", "1"]
    assert names("most", "inside")[0] == "9"
    assert names("most", "outside") == ["6"]
    for text in ("aes", "aes:x:", "aes:nan:", "aes:1:2:3"):
        answer = page.get("/limits", limit=text)
        assert (answer.status_code, answer.json()["code"]) == (400, "value-not-allowed")


_ENDS = st.none() | st.sampled_from([score for score in SCORES if score is not None]) | st.floats(-1, 10)
_RANGES = st.fixed_dictionaries(
    {"aes": st.tuples(_ENDS, _ENDS), "width": st.tuples(st.sampled_from([None, 32]), st.none())}
)


@settings(max_examples=25)
@given(_RANGES)
def test_what_is_inside_is_what_the_filter_keeps(
    page: Page, ends: dict[str, tuple[float | None, float | None]]
) -> None:
    clips = page.clips()
    ranges = {name: ColumnRange(*both) for name, both in ends.items()}
    found = limits.ask(clips, "meta", ranges, "aes")
    among = clips.data.rows.take(limits.base(clips, "meta"))
    kept = np.ones(len(among), dtype=bool) if found.filter is None else filters.keeps(among, found.filter)
    assert (found.clips, found.inside) == (9, int(kept.sum()))
    scores = clips.data.rows.scores["aes"]
    for side, limit, sign in ((found.least, ends["aes"][0], 1), (found.most, ends["aes"][1], -1)):
        assert (side is None) == (limit is None)
        if side is not None and limit is not None:
            near = sign * (scores[side.inside] - float(f"{limit:.12g}"))
            assert (np.diff(near) >= 0).all()
            assert (sign * (scores[side.outside] - limit) < 0).all()


@pytest.mark.parametrize(
    ("former", "ends"),
    [
        ("aes > 2 and aes < 9.125", "aes:2:9.125"),
        ("aes < 6.5 and width > 16", "aes::6.5"),
        ("caption_length > 5", "aes::"),
        ("aes > 3.5", "aes:3.5:"),
    ],
)
def test_limits_that_are_not_moved_keep_what_the_recipe_keeps(page: Page, former: str, ends: str) -> None:
    """A value at an open end is left out, before and after another limit is moved, and so is what no slider shows."""
    every = page.begin().clips().data.rows.take(limits.base(page.clips(), "meta"))
    page.begin(former)
    rows, kept = every, int(filters.keeps(every, former).sum())
    assert 0 < kept < len(rows)
    limit = [ends, *["width:16:"] * ("width" in former)]
    found = page.get("/limits", limit=limit).json()
    assert (found["inside"], found["filter"]) == (kept, former)
    assert page.get("/limits", limit=[*limit, "fps::5"]).json()["filter"] == f"{former} and fps <= 5"
    name, least, most = ends.split(":")
    moved = page.get("/limits", limit=[f"{name}:{least or 1}:{most or 60}", *limit[1:]]).json()
    again = filters.keeps(rows, moved["filter"])
    assert moved["inside"] == int(again.sum())
    assert not (again & ~filters.keeps(rows, former)).any()


@pytest.mark.parametrize(
    ("former", "side", "outside"),
    [("aes > 4", "least", {"4", "5"}), ("aes >= 4", "least", {"0"}), ("aes < 4", "most", {"4", "5"})],
)
def test_clips_on_an_open_limit_are_the_first_that_it_leaves_out(
    page: Page, former: str, side: str, outside: set[str]
) -> None:
    limit = "aes:4:" if side == "least" else "aes::4"
    found = page.begin(former).get("/limits", limit=limit, moved="aes").json()[side]
    names = [clip["path"].removeprefix("meta/")[0] for clip in found["outside"]]
    assert set(names[: len(outside)]) == outside
    assert not outside & {clip["path"].removeprefix("meta/")[0] for clip in found["inside"]}


def test_the_filter_is_written_into_the_recipe_and_taken_back(page: Page) -> None:
    """What else it asks for stays, as do all other lines; another filter in the file is not lost."""
    before = page.begin(FORMER).file.read_text(encoding="utf-8")
    found = page.get("/limits", limit=["aes:4:", "width:32:"]).json()
    assert (found["clips"], found["former"]) == (9, FORMER)
    assert found["filter"] == "(kind == 'image' or aes < 9) and aes >= 4 and width >= 32"
    assert page.write(found["filter"], FORMER).json() == {"filter": found["filter"], "ready": True}
    assert recipe_file.load(page.file).dataset[0].filter == found["filter"]
    assert page.file.read_text(encoding="utf-8").replace(found["filter"], FORMER) == before
    again = page.get("/limits", limit=["aes:4:", "width:32:"]).json()
    assert (again["clips"], again["filter"], again["inside"]) == (9, found["filter"], found["inside"])
    late = page.write(None, FORMER)
    assert (late.status_code, late.json()["code"]) == (400, "file-changed")
    wrong = page.write("aes >", found["filter"])
    assert (wrong.status_code, wrong.json()["code"]) == (400, "filter-not-an-expression")
    assert page.write(FORMER, found["filter"]).status_code == 200
    assert page.file.read_text(encoding="utf-8") == before


@pytest.mark.parametrize("of_all", ["other, mine", "mine", "none"])
def test_with_stages_the_filter_is_written_into_the_datasets_that_the_page_shows(tmp_path: Path, of_all: str) -> None:
    page = Page(tmp_path)
    (tmp_path / "other").mkdir()
    mine = f'path = "{tmp_path.as_posix()}/data/meta.csv"\n'
    tables = {
        "other": f'[[dataset]]\npath = "{tmp_path.as_posix()}/other"\n',
        "mine": f"[[dataset]]\n{mine}",
        "none": "",
    }
    text = page.written.replace(tables["mine"], "".join(map(tables.__getitem__, of_all.split(", "))))
    stage = f'[[stage]]\nname = "a"\nsteps = 1\n[[stage.dataset]]\n{mine}filter = "aes > 2"\n'
    page.file.write_text(text.replace("max_epochs = 1\n", "") + stage, encoding="utf-8")
    page.clips(fresh=True)
    assert page.write("aes > 3", "aes > 2").status_code == 200
    assert page.file.read_text(encoding="utf-8") == text.replace("max_epochs = 1\n", "") + stage.replace(
        "aes > 2", "aes > 3"
    )


@pytest.mark.parametrize(
    ("text", "ranges", "rest"),
    [
        (None, {}, None),
        ("aes > 4.5", {"aes": (4.5, None)}, None),
        ("2 <= aes <= 5 and aes >= 3", {"aes": (3, 5)}, None),
        ("not aes < 2 and 480 <= height", {"aes": (2, None), "height": (480, None)}, None),
        ("aes > 1 or height > 3", {}, "aes > 1 or height > 3"),
        ("width * 2 > 3 and aes != 3 and aes < -2", {"aes": (None, -2)}, "width * 2 > 3 and aes != 3"),
    ],
)
def test_limits_are_taken_out_of_a_filter_and_put_back(
    text: str | None, ranges: dict[str, tuple[float | None, float | None]], rest: str | None
) -> None:
    found, others = filter_expression.divide(text)
    assert ({name: (one.least, one.most) for name, one in found.items()}, others) == (ranges, rest)
    again = filter_expression.with_ranges(text, found)
    assert filter_expression.divide(again) == (found, others)
    none = filter_expression.with_ranges(text, {name: ColumnRange() for name in found})
    assert filter_expression.divide(none) == ({}, rest)
