"""Measures are columns of a catalog that stay true to the content of clips, whatever becomes of files, captions and lists."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import drawn_scenes as drawn
import numpy as np
import prepare_files
import pytest
from refused import refused

from reelworks.annexes.quality import registry, run
from reelworks.annexes.quality.run import MeasureResult, measure_catalog
from reelworks.core import trust
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.config import DatasetConfig, Source
from reelworks.data.catalog.query import filters
from reelworks.data.catalog.scan.scan import ScanProgress, ScanResult, scan_sources
from reelworks.data.catalog.store import compact, kept_measures, measured_columns
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import required_columns
from reelworks.training.recipe import dataset as recipe_dataset
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

OUTSIDE = '''
import os
import time
from reelworks.data.catalog.store.measured_columns import Column


class Redness:
    """Mean of red."""

    name, version, reads = "redness", 1, ("stills",)
    columns = (Column("redness", "0 to 1", "mean of red"),)

    def values(self, clip):
        if clip.path.name == "deadly.png":
            os._exit(1)
        while clip.path.name == "endless.png":
            time.sleep(0.1)
        if clip.path.name == "odd.png":
            raise ValueError("an odd picture")
        return (clip.stills[0].rgb[..., 0].mean() / 255,)
'''


def write(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return drawn.write_picture(path, drawn.scene(np.random.default_rng(seed), 40, 48, shapes=3))


def scan(tmp_path: Path, *sources: Source) -> ScanResult:
    return scan_sources(sources or [Source("d", tmp_path / "d")], tmp_path / "catalog", workers=1)


def measure(tmp_path: Path, *names: str) -> MeasureResult:
    return measure_catalog(tmp_path / "catalog", names or ("sharpness", "duplicates"), workers=1)


def column(tmp_path: Path, name: str) -> dict[str, float]:
    live = Catalog.open(tmp_path / "catalog").live()
    return dict(zip(live.path.to_pylist(), live.scores[name].tolist(), strict=True))


def stored(tmp_path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in (tmp_path / "catalog").rglob("*.*") if p.is_file()}


def test_values_become_columns_once(tmp_path: Path, decoded: list[str]) -> None:
    for i in range(3):
        write(tmp_path / "d" / f"{i}.png", i)
    (tmp_path / "d" / "bad.png").write_bytes(b"no picture")
    shutil.copy(tmp_path / "d" / "0.png", tmp_path / "d" / "copy.png")
    scan(tmp_path)
    seen: list[tuple[int, int]] = []
    result = measure_catalog(
        tmp_path / "catalog", ("sharpness", "duplicates"), workers=1, on_progress=lambda *done: seen.append(done)
    )
    assert (result.clips, result.measured, result.changed, result.version) == (4, 3, 4, 2)
    assert seen[-1] == (3, 3)
    assert len(decoded) == 3
    sharp, group, rank = (column(tmp_path, n) for n in ("sharpness", "duplicate_group", "duplicate_rank"))
    assert sharp["0.png"] == sharp["copy.png"] != sharp["1.png"]
    assert np.isnan(sharp["bad.png"])
    assert group["0.png"] == group["copy.png"] == 1.0
    assert np.isnan([group["1.png"], group["2.png"]]).all()
    assert sorted([rank["0.png"], rank["copy.png"]]) == [0.0, 1.0]
    assert rank["1.png"] == rank["2.png"] == 0.0
    live = Catalog.open(tmp_path / "catalog").live()
    assert filters.keeps(live, f"sharpness > {sharp['1.png'] - 1e-9} or duplicate_rank == 0").sum() >= 3
    before = stored(tmp_path)
    again = measure(tmp_path)
    assert (again.measured, again.changed, again.version) == (0, 0, 2)
    assert scan(tmp_path).version == 2
    assert stored(tmp_path) == before
    assert {c.name: c.present for c in again.columns} == {"sharpness": 4, "duplicate_group": 2, "duplicate_rank": 4}


def test_what_could_not_be_read_is_measured_once_it_is_there_again(tmp_path: Path, decoded: list[str]) -> None:
    for i in range(2):
        write(tmp_path / "d" / f"{i}.png", i)
    scan(tmp_path)
    away = (tmp_path / "d" / "1.png").rename(tmp_path / "1.png")
    first = measure(tmp_path, "sharpness")
    assert [clip for clip, _ in first.failed] == ["d/1.png"]
    assert np.isnan(column(tmp_path, "sharpness")["1.png"])
    away.rename(tmp_path / "d" / "1.png")
    again = measure(tmp_path, "sharpness")
    assert (again.measured, again.changed, again.failed) == (1, 1, ())
    assert not np.isnan(column(tmp_path, "sharpness")["1.png"])


@pytest.mark.slow
def test_columns_follow_the_content(tmp_path: Path, decoded: list[str]) -> None:
    footage = tmp_path / "d"
    for i in range(4):
        write(footage / f"{i}.png", i)
    shutil.copy(footage / "0.png", footage / "twin.png")
    scan(tmp_path)
    measure(tmp_path)
    before = [column(tmp_path, n) for n in ("sharpness", "duplicate_group", "duplicate_rank")]
    (footage / "0.txt").write_text("a caption", encoding="utf-8")
    (footage / "1.png").rename(footage / "moved.png")
    (footage / "twin.png").rename(footage / "other.png")
    shutil.copy(footage / "2.png", footage / "another.png")
    write(footage / "3.png", 33)
    result = scan(tmp_path)
    assert (result.new, result.changed, result.removed) == (3, 2, 2)
    after = [column(tmp_path, n) for n in ("sharpness", "duplicate_group", "duplicate_rank")]
    for old, new in zip(before, after, strict=True):
        for was, now in (("0.png", "0.png"), ("1.png", "moved.png"), ("twin.png", "other.png"), ("2.png", "2.png")):
            np.testing.assert_equal(new[now], old[was])
        assert np.isnan(new["3.png"])
    assert after[0]["another.png"] == before[0]["2.png"]
    assert np.isnan(after[2]["another.png"])  # whether it is the best depends on other clips
    decoded.clear()
    measure(tmp_path)
    assert decoded == ["3.png"]
    assert not any(np.isnan(value) for value in column(tmp_path, "sharpness").values())
    assert column(tmp_path, "duplicate_group")["another.png"] == column(tmp_path, "duplicate_group")["2.png"] == 2.0
    assert scan(tmp_path).changed == 0


@pytest.mark.slow
def test_any_history_ends_with_the_columns_of_a_fresh_catalog(tmp_path: Path, decoded: list[str]) -> None:
    draw, footage, seeds = random.Random(4), tmp_path / "d", itertools.count()
    contents: set[bytes] = set()
    for i in range(5):
        write(footage / f"{i}.png", next(seeds))
    for step in range(40):
        files = sorted(footage.glob("*.png"))
        one = draw.choice(files)
        match draw.randrange(5):
            case 0:
                write(footage / f"new{step}.png", next(seeds))
            case 1:
                shutil.copy(one, footage / f"copy{step}.png")
            case 2:
                one.rename(footage / f"moved{step}.png")
            case 3:
                one.with_suffix(".txt").write_text(f"caption {step}", encoding="utf-8")
            case 4 if len(files) > 3:
                one.unlink()
        scan(tmp_path)
        if draw.random() < 0.6:
            measure(tmp_path)
            contents |= {file.read_bytes() for file in footage.glob("*.png")}
        if draw.random() < 0.2:
            compact.compact(tmp_path / "catalog")
    measure(tmp_path)
    contents |= {file.read_bytes() for file in footage.glob("*.png")}
    assert len(decoded) == len(contents)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    scan_sources([Source("d", footage)], fresh / "catalog", workers=1)
    measure(fresh)
    for name in ("sharpness", "duplicate_rank"):
        assert column(tmp_path, name) == pytest.approx(column(fresh, name), nan_ok=True)
    groups = [
        [sorted(p for p, g in found.items() if g == n) for n in {*found.values()} if n == n]
        for found in (column(tmp_path, "duplicate_group"), column(fresh, "duplicate_group"))
    ]
    assert sorted(groups[0]) == sorted(groups[1])


def test_what_was_measured_survives_an_interruption_and_a_torn_segment(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(40):
        write(tmp_path / "d" / f"{i:02d}.png", i)
    scan(tmp_path)
    monkeypatch.setattr(run, "_SECONDS_BETWEEN_WRITES", 0.0)

    def stop(done: int, _: int) -> None:
        if done >= 15:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "_SECONDS_BETWEEN_REPORTS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        measure_catalog(tmp_path / "catalog", ("sharpness",), workers=1, on_progress=stop)
    assert Catalog.open(tmp_path / "catalog").version == 1
    segments = sorted((tmp_path / "catalog" / kept_measures.NAME).glob("*.parquet"))
    assert len(segments) == 15
    segments[-1].write_bytes(segments[-1].read_bytes()[:-9])
    decoded.clear()
    with caplog.at_level("WARNING", "reelworks"):
        result = measure(tmp_path, "sharpness")
    assert segments[-1].name in caplog.text
    assert result.measured == len(decoded) == 26
    assert not np.isnan(list(column(tmp_path, "sharpness").values())).any()
    assert len(list((tmp_path / "catalog" / kept_measures.NAME).glob("*.parquet"))) < 40  # joined


@pytest.mark.slow
def test_a_list_keeps_its_own_score(tmp_path: Path, decoded: list[str]) -> None:
    files = [write(tmp_path / "d" / f"{i}.png", i) for i in range(2)]
    write(tmp_path / "e" / "x.png", 7)
    listed = tmp_path / "d" / "list.csv"
    source = Source("listed", tmp_path / "d", listed)
    both = (source, Source("e", tmp_path / "e"))
    listed.write_text("path,sharpness,aes\n0.png,7,1\n1.png,8,2\n", encoding="utf-8")
    scan(tmp_path, *both)
    result = measure(tmp_path, "sharpness")
    assert result.notes == ("dataset listed: its list's own sharpness stay as they are",)
    sharp = column(tmp_path, "sharpness")
    assert (sharp["0.png"], sharp["1.png"]) == (7.0, 8.0)
    assert 0 < sharp["x.png"] < 1
    listed.write_text("path,sharpness,aes\n0.png,7,1\n1.png,9,5\n", encoding="utf-8")
    assert scan(tmp_path, *both).changed == 1
    assert column(tmp_path, "sharpness") == sharp | {"1.png": 9.0}
    assert measure(tmp_path, "sharpness").changed == 0
    listed.write_text("path,aes\n0.png,1\n1.png,5\n", encoding="utf-8")
    assert scan(tmp_path, *both).changed == 2
    assert np.isnan([column(tmp_path, "sharpness")[file.name] for file in files]).all()
    assert column(tmp_path, "aes") == {"0.png": 1.0, "1.png": 5.0, "x.png": pytest.approx(np.nan, nan_ok=True)}
    assert measure(tmp_path, "sharpness").measured == 0
    assert all(0 < column(tmp_path, "sharpness")[file.name] < 1 for file in files)
    assert scan(tmp_path, *both).changed == 0


def test_a_measure_counts_its_groups_whatever_numbers_a_list_has(tmp_path: Path, decoded: list[str]) -> None:
    """Near-duplicates of both, too: the list's numbers stay, and those of the measure are its own."""
    for name in ("d/0.png", "e/0.png", "e/1.png"):
        write(tmp_path / name, 0)
    listed = tmp_path / "d" / "list.csv"
    listed.write_text("path,duplicate_group,duplicate_rank\n0.png,1e300,0\n", encoding="utf-8")
    scan(tmp_path, Source("listed", tmp_path / "d", listed), Source("e", tmp_path / "e"))
    assert measure(tmp_path, "duplicates").failed == ()
    assert measure(tmp_path, "duplicates").changed == 0
    live = Catalog.open(tmp_path / "catalog").live()
    assert sorted(live.scores["duplicate_group"].tolist()) == [1.0, 1.0, 1e300]


@pytest.mark.slow
def test_a_class_from_outside_with_a_crash_and_a_hang_in_it(tmp_path: Path) -> None:
    for name in ("a", "deadly", "endless", "odd", "z"):
        write(tmp_path / "d" / f"{name}.png", ord(name[0]))
    scan(tmp_path)
    code = tmp_path / "outside.py"
    code.write_text(OUTSIDE, encoding="utf-8")
    names = f"{code}:Redness", "exposure"
    result = measure_catalog(tmp_path / "catalog", names, workers=1, timeout_seconds=4.0)
    found = column(tmp_path, "redness")
    assert found["a.png"] > 0.05
    assert found["z.png"] > 0.05
    assert np.isnan([found[f"{name}.png"] for name in ("deadly", "endless", "odd")]).all()
    assert column(tmp_path, "brightness")["odd.png"] > 0.05
    assert dict(result.failed) == {
        "d/deadly.png": "the decoder crashed on it",
        "d/endless.png": "it took more than 4 s and was stopped",
        "d/odd.png": "redness: ValueError: an odd picture",
    }
    DatasetConfig(path=str(tmp_path / "d"), filter="redness > 0.1")  # the class is known now


def test_wrong_measures_are_refused(tmp_path: Path) -> None:
    with refused("class-unknown", "--only", says="sharpness"):
        registry.named("sharpnes", "--only")
    with refused("class-not-importable"):
        registry.named(f"{tmp_path}/nothing.py:Missing", "--only")

    class Taken:
        name, version, reads = "taken", 1, ("stills",)
        columns = registry.named("motion", "x").columns

        def values(self, clip: Any) -> tuple[float, ...]:
            return (0.0, 0.0)

    with refused("measure-column-invalid", says="motion"):
        registry.register(Taken)
    with refused("class-incomplete", says="columns"):
        registry.register(type("Empty", (), {"name": "empty"}))
    with refused("no-catalog"):
        measure_catalog(tmp_path, workers=1)


def test_a_folder_may_name_measured_columns_only(tmp_path: Path, decoded: list[str]) -> None:
    folder = str(tmp_path / "d")
    write(tmp_path / "d" / "a.png", 1)
    scan(tmp_path)
    named = DatasetConfig(path=folder, filter="sharpness > 0.1", caption="{text}, {motion:.0f}")
    with refused("filter-invalid", says="sharpness"):
        DatasetConfig(path=folder, filter="sharpnes > 0.1")
    catalog = Catalog.open(tmp_path / "catalog")
    with refused("not-measured", "dataset.filter", says="--only sharpness") as found:
        required_columns.require_scores([named], catalog.live(), catalog)
    assert "data.measures" in found.value.remedy
    with refused("not-measured", "dataset.caption"):
        required_columns.require_scores([named.model_copy(update={"filter": None})], catalog.live(), catalog)
    with refused("not-measured", says="--only aesthetic=FOLDER"):
        required_columns.require_scores([DatasetConfig(path=folder, filter="aesthetic > 5")], catalog.live(), catalog)
    measure(tmp_path, "sharpness", "duplicates", "motion")
    catalog = Catalog.open(tmp_path / "catalog")
    required_columns.require_scores([named], catalog.live(), catalog)


def test_the_page_lists_every_column() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/know-your-data.md").read_text(encoding="utf-8")
    for measure, columns in measured_columns.BUILT_IN.items():
        assert columns == registry.named(measure, "x").columns
        for column in columns:
            assert f"| `{column.name}` | {column.unit} | {column.meaning} |" in page
    for columns in (*measured_columns.OF_NETWORKS.values(), *measured_columns.WITH_EXTRAS.values()):
        assert f"| `{columns[0].name}` | {columns[0].unit} | {columns[0].meaning} |" in page


def test_a_recipe_measures_before_its_filter(tmp_path: Path, decoded: list[str]) -> None:
    sharp = drawn.scene(np.random.default_rng(0), 96, 128)
    (tmp_path / "data").mkdir()
    for name, picture in (("sharp", sharp), ("soft", drawn.blurred(sharp, 3)), ("twin", sharp)):
        drawn.write_picture(tmp_path / f"data/{name}.png", picture).with_suffix(".txt").write_text(
            "a scene", encoding="utf-8"
        )
    filtered = [{"path": str(tmp_path / "data"), "filter": "sharpness > 0.5", "duplicates": "best"}]
    made = prepare_files.recipe(tmp_path, dataset=filtered, data={"measures": ["sharpness", "duplicates"]})
    seen: list[ScanProgress] = []
    recipe_dataset.scan_recipe(made, seen.append)
    assert {progress.doing for progress in seen} == {("scanning", "files"), ("measuring", "clips")}
    opened = RecipeData.open(made)
    left_out = dict(zip(opened.rows.path.to_pylist(), opened.excluded.tolist(), strict=True))
    assert left_out["soft.png"] == Reason.FILTERED
    assert len(opened.entries(0).ordinal) == 1
    assert recipe_dataset.scan_recipe(made).version == opened.catalog.version


def test_code_that_a_recipe_names_runs_once_it_is_trusted(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(trust, "_ask", lambda path: False)
    code = tmp_path / "outside.py"
    code.write_text(OUTSIDE.replace("Redness", "Ruddy").replace("redness", "ruddy"), encoding="utf-8")
    write(tmp_path / "data" / "a.png", 1).with_suffix(".txt").write_text("a scene", encoding="utf-8")
    named = [{"path": str(tmp_path / "data"), "filter": "ruddy > 0.01"}]
    made = prepare_files.recipe(tmp_path, dataset=named, data={"measures": [f"{code}:Ruddy"]})
    with refused("code-not-trusted", "data.measures"):
        recipe_dataset.scan_recipe(made)
    trust.add([code])
    recipe_dataset.scan_recipe(made)
    assert RecipeData.open(made).excluded.tolist() == [Reason.NONE]
    with refused("filter-invalid"):
        prepare_files.recipe(tmp_path, dataset=[named[0] | {"filter": "radness > 0.01"}])


def test_a_recipe_may_name_columns_that_its_catalog_has(tmp_path: Path, decoded: list[str]) -> None:
    code = tmp_path / "outside.py"
    code.write_text(OUTSIDE, encoding="utf-8")
    write(tmp_path / "d" / "a.png", 1).with_suffix(".txt").write_text("a scene", encoding="utf-8")
    scan(tmp_path)
    folder, output = str(tmp_path / "d"), tmp_path / "run"

    def recipe(**entry: str) -> Recipe:
        return prepare_files.recipe(
            tmp_path, output=str(output), catalog=str(tmp_path / "catalog"), dataset=[{"path": folder, **entry}]
        )

    with refused("filter-invalid", says="redness"):
        recipe(filter="redness > 0.01")
    measure(tmp_path, f"{code}:Redness")
    measured_columns._COLUMNS.pop("redness")  # another process does not know the class
    assert RecipeData.open(recipe(filter="redness > 0.01")).excluded.tolist() == [Reason.NONE]
    assert recipe(caption="{text} {redness:.1f}").dataset[0].caption
    with refused("filter-invalid", says="redness"):
        recipe(filter="rednes > 0.01")
    run_file = output / "recipe.toml"
    output.mkdir()
    run_file.write_text(recipe_file.dump(recipe(filter="redness > 0.01")), encoding="utf-8")
    (tmp_path / "catalog").rename(tmp_path / "elsewhere")
    with refused("filter-invalid"):
        recipe_file.load(run_file)
    (output / "run.json").write_text("{}", encoding="utf-8")
    assert recipe_file.load(run_file).dataset[0].filter, "the recipe of a run is read without its catalog"


COMPARING = '''
from reelworks.data.catalog.store.measured_columns import Column


class Rarity:
    """A measure that compares, and does so wrongly."""

    name, version, reads, feature_bytes = "rarity", 1, ("stills",), 2
    columns = (Column("rarity", "rank", "nothing"),)

    def features(self, clip):
        return b"ab" if clip.path.name != "odd.png" else b"abc"

    def compare(self, clips):
        assert clips.features.tolist() == [[97, 98]] * 2
        raise ZeroDivisionError("nothing to divide")


class Weighty:
    """A measure whose weights are not there."""

    name, version, reads = "weighty", 1, ("stills",)
    columns = (Column("weighty", "kg", "nothing"),)

    def __init__(self):
        raise FileNotFoundError("weights.safetensors")

    def values(self, clip):
        return (0.0,)
'''


def test_a_measure_that_fails_costs_no_value_of_others(tmp_path: Path, decoded: list[str]) -> None:
    for name in ("a", "b", "odd"):
        write(tmp_path / "d" / f"{name}.png", ord(name[0]))
    scan(tmp_path)
    code = tmp_path / "comparing.py"
    code.write_text(COMPARING, encoding="utf-8")
    result = measure(tmp_path, f"{code}:Rarity", f"{code}:Weighty", "exposure")
    assert not np.isnan(list(column(tmp_path, "brightness").values())).any()
    told = {reason for _, reason in result.failed}
    assert told == {
        f"{code}:Weighty: FileNotFoundError: weights.safetensors",
        "rarity: ValueError: it returned 3 bytes, and not 2",
        "rarity: ZeroDivisionError: nothing to divide",
    }


def test_clips_that_a_scan_finds_meanwhile_are_measured_next_time(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d" / "a.png", 1)
    scan(tmp_path)
    real = run._measure_all

    def with_a_scan(*arguments: Any) -> Any:
        write(tmp_path / "d" / "b.png", 2)
        scan(tmp_path)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run, "_measure_all", with_a_scan)
        measure(tmp_path, "sharpness")
    assert np.isnan(column(tmp_path, "sharpness")["b.png"])
    assert measure(tmp_path, "sharpness").measured == 1
    assert not np.isnan(column(tmp_path, "sharpness")["b.png"])


def test_nothing_is_kept_without_the_lock(tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What two runs keep at once would be the values of either."""
    write(tmp_path / "d" / "a.png", 1)
    scan(tmp_path)
    real, folder = run._measure_all, tmp_path / "catalog" / kept_measures.NAME

    def without_the_lock(*arguments: Any) -> Any:
        (folder / ".lock").unlink()
        return real(*arguments)

    monkeypatch.setattr(run, "_measure_all", without_the_lock)
    with refused("lock-lost", "catalog", says="its lock file was removed"):
        measure(tmp_path, "sharpness")
    assert [file.name for file in folder.iterdir() if file.name != ".lock"] == []


def test_a_catalog_from_before_there_were_measures(tmp_path: Path, decoded: list[str]) -> None:
    write(tmp_path / "d" / "0.png", 0)
    write(tmp_path / "e" / "x.png", 7)
    listed = tmp_path / "d" / "list.csv"
    listed.write_text("path,sharpness\n0.png,7\n", encoding="utf-8")
    both = (Source("listed", tmp_path / "d", listed), Source("e", tmp_path / "e"))
    scan(tmp_path, *both)
    file = tmp_path / "catalog" / "catalog.json"
    former = json.loads(file.read_text(encoding="utf-8"))
    for part in former["parts"]:
        for source in part["sources"]:
            assert source.pop("scores") is not None
    file.write_text(json.dumps(former), encoding="utf-8")
    measure(tmp_path, "sharpness", "exposure")
    sharp = column(tmp_path, "sharpness")
    assert sharp["0.png"] == 7.0
    assert 0 < sharp["x.png"] < 1
    assert scan(tmp_path, *both).changed == 0
    (tmp_path / "e" / "x.txt").write_text("a caption", encoding="utf-8")
    assert scan(tmp_path, *both).changed == 1
    assert column(tmp_path, "sharpness") == sharp
