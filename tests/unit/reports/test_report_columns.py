"""What a limit would cost is what a filter with it costs, by clips, hours, buckets, frames and tokens."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import prepare_files as files
import pyarrow as pa
import pytest
from catalog_rows import BAD, PICTURE, rows

from reelworks.annexes.quality import inspect
from reelworks.commands import main
from reelworks.data.catalog.store.store import Catalog
from reelworks.reports import columns
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures and videos in a list with a score, which one of them lacks, and one that no bucket takes."""
    root = tmp_path_factory.mktemp("columns")
    lines = ["path,text,aes"]
    for i in range(6):
        files.picture(root / "data" / f"{i}.png", (16, 16) if i == 4 else (48, 64), grey=40 * i)
        lines.append(f"{i}.png,a cat,{'' if i == 5 else i}")
    for i, frames in enumerate((9, 12)):
        files.clip(root / "data" / f"{i}.mp4", frames)
        lines.append(f"{i}.mp4,a dog,{10 * i + 0.5}")
    (root / "data" / "meta.csv").write_text("\n".join(lines), encoding="utf-8")
    files.opened(recipe(root))
    return root


def recipe(root: Path, **entry: Any) -> Any:
    return files.recipe(root, dataset=[{"path": str(root / "data" / "meta.csv"), **entry}])


def planned(data: RecipeData) -> tuple[set[int], dict[str, int]]:
    """Clips that the first epoch trains, and their number by bucket."""
    entries = data.entries(0)
    number = np.bincount(entries.bucket, minlength=len(data.table.buckets)).tolist()
    names = [bucket.name for bucket in data.table.buckets]
    return set(entries.ordinal.tolist()), {name: n for name, n in zip(names, number, strict=True) if n}


def test_a_limit_costs_what_the_plan_of_a_filter_with_it_loses(folder: Path) -> None:
    data = RecipeData.open(recipe(folder))
    before, by_bucket = planned(data)
    tokens = dict(zip((b.name for b in data.table.buckets), data.table.tokens().tolist(), strict=True))
    frames = {b.name: b.shape.num_frames for b in data.table.buckets}
    found = {column.name: column for column in columns.columns(columns.Counted.of_recipe(data))}
    assert found.keys() == {"height", "width", "duration_seconds", "fps", "aes"}
    assert (found["aes"].clips, found["aes"].missing) == (6, 1)
    assert (found["fps"].clips, found["fps"].missing, found["fps"].unit) == (2, 0, "frames per second, of videos")
    assert dict(found["aes"].histogram)["none"] == 1
    lacking = {int(o) for o, score in zip(data.rows.ordinal, data.rows.scores["aes"], strict=True) if np.isnan(score)}
    assert [one.percentile for one in found["aes"].percentiles] == [1, 10, 50, 90, 99]
    for one in found["aes"].percentiles:
        for sign, loss in ((">=", one.at_least), ("<=", one.at_most)):
            left, left_by_bucket = planned(RecipeData.open(recipe(folder, filter=f"aes {sign} {one.value!r}")))
            lost = before - left - lacking
            assert loss.clips == len(lost)
            hours = [data.rows.duration_seconds[row] / 3600 for row in data.rows_at(np.array(sorted(lost), np.int64))]
            assert loss.hours == pytest.approx(sum(hours))
            of_lacking = {name: by_bucket[name] - left_by_bucket.get(name, 0) for name in by_bucket}
            without = {b.name: b.clips for b in loss.buckets}
            assert sum(of_lacking.values()) == sum(without.values()) + len(lacking & before)
            assert all(of_lacking[name] - n in (0, 1) for name, n in without.items())
            assert (
                loss.tokens
                == sum(tokens[name] * n for name, n in without.items())
                == sum(b.tokens for b in loss.buckets)
            )
            assert loss.frames == sum(frames[name] * n for name, n in without.items())
    assert found["aes"].percentiles[0].files[0] == "meta/0.png"
    assert found["aes"].percentiles[-1].files[0] == "meta/1.mp4"


def test_without_a_recipe_readable_clips_in_the_proposed_buckets_count() -> None:
    among = rows(*({"height": 720 + i, "width": 1280} for i in range(8)), PICTURE, BAD)
    found = {column.name: column for column in inspect.inspect_rows(among).columns}
    assert found["height"].clips == 9
    median = found["height"].percentiles[2]
    assert (median.value, median.at_least.clips, median.at_most.clips) == (724, 4, 4)
    assert sum(bucket.clips for bucket in median.at_least.buckets) == 4
    assert found["duration_seconds"].clips == 8
    assert [limit for limit, _ in median.limits] == [">= 724", "<= 724"]
    third = replace(median, value=1 / 3)
    assert [limit for limit, _ in third.limits] == [">= 0.333333", "<= 0.333334"]
    assert columns.heading("unheard_of") == ("unheard of", "", False)
    assert inspect.inspect_rows(among.take(np.zeros(0, np.int64))).columns == []


@pytest.mark.slow
def test_clips_at_the_percentiles_are_named_and_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def inspected(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["reelworks", "inspect", str(folder / "run" / "catalog"), *options])
        with pytest.raises(SystemExit) as left:
            main.main()
        assert not left.value.code
        return capsys.readouterr().out

    (tmp_path / "mine.toml").write_text(recipe_file.dump(recipe(folder)), encoding="utf-8")
    page = tmp_path / "page.html"
    told = inspected("--recipe", str(tmp_path / "mine.toml"), "--html", str(page))
    assert "aes, 1 clip without it" in told
    assert "meta/1.mp4" in told
    text = page.read_text(encoding="utf-8")
    assert text.count("<code>aes &gt;= ") == 5
    assert text.count('<img src="data:image/webp;base64,') == 25
    (aes,) = [column for column in json.loads(inspected("--json"))["columns"] if column["name"] == "aes"]
    assert aes["percentiles"][0] | {"at_least": 0, "at_most": 0} == {
        "percentile": 1,
        "value": 0.0,
        "files": ["meta/0.png", "meta/0.mp4", "meta/1.png"],
        "at_least": 0,
        "at_most": 0,
    }


def test_a_clip_that_cannot_be_decoded_leaves_its_place_empty(folder: Path) -> None:
    live = Catalog.open(folder / "run" / "catalog").live()
    names = pa.array([*live.path.to_pylist()[:-1], "gone.png"], type=live.path.type)
    shown = columns.thumbnails(live.replaced(path=names), [0, len(live) - 1])
    assert shown.keys() == {0}


def test_numbers_of_groups_have_no_distribution_and_no_limits(folder: Path) -> None:
    live = Catalog.open(folder / "run" / "catalog").live()
    numbers = np.ones(len(live))
    grouped = live.replaced({"duplicate_group": numbers, "duplicate_rank": numbers, "own": numbers})
    assert columns.limitable(grouped) == ["own", *columns.HEADINGS]
    units = {title: unit for title, unit, _ in inspect.inspect_rows(grouped).histograms}
    assert units["own"] == "score"
    assert units.keys().isdisjoint(("duplicate_group", "duplicate_rank"))
