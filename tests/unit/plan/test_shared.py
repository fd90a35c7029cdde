"""Files that two datasets have in common are told, unless the recipe says that it means them."""

from __future__ import annotations

import prepare_files as made
import pytest

from reelworks.training.plan import data_advice, plan_forecast, plan_report
from reelworks.training.recipe import dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four pictures, two of them in a folder within, and a list of three; a neighbour whose name begins alike."""
    path = tmp_path_factory.mktemp("shared")
    for name in ("data/a", "data/b", "data/inner/c", "data/inner/d", "data-more/a"):
        made.picture(path / f"{name}.png")
    (path / "list.csv").write_text("path,text\ndata/a.png,x\ndata/inner/c.png,y\ndata-more/a.png,z\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        (["data", "data/inner"], [(["data", "inner"], 2)]),
        (["data/inner", "data"], [(["data", "inner"], 2)]),
        (["data", "data-more"], []),
        (["list.csv", "data"], [(["list", "data"], 2)]),
        (["data", "data/inner", "data-more", "list.csv"], [("list", 1), ("list", 1), ("list", 2), ("data", 2)]),
    ],
)
def test_shared_files_are_counted_whatever_names_them(folder, paths, told):
    """Folders within folders and lists beside them; a neighbour of a similar name shares nothing."""
    data = made.opened(made.recipe(folder, dataset=[{"path": str(folder / p)} for p in paths]))
    found = data_advice.shared_files(data.recipe.dataset, data.rows)
    if len(paths) == 2:
        assert [(one.datasets, one.files) for one in found] == told
    else:
        assert sorted((one.datasets[0], one.files) for one in found) == sorted(told)


@pytest.mark.parametrize("meant", [{"name": "again"}, {"caption": "{text}, at night"}, {"filter": "height > 1"}])
def test_what_is_meant_is_not_told(folder, meant):
    """A name, another caption or another filter says that clips of both are wanted."""
    paths = [{"path": str(folder / "data")}, {"path": str(folder / "data/inner")}]
    (warned,) = warnings(made.recipe(folder, dataset=paths))
    assert "the datasets data and inner share 2 files" in warned
    paths[1] |= meant
    assert warnings(made.recipe(folder, dataset=paths)) == []


def warnings(recipe):
    dataset.scan_recipe(recipe)
    return plan_report.warnings(plan_forecast.forecast(recipe, 1))
