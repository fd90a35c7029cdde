"""An annex of another package, found by its entry point: its command, recipe table, observer, route of the page, section of reports and engine."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fabricate
import page_client
import pytest
import tomli_w
from refused import refused
from test_stored_latents import checksums
from typer.testing import CliRunner

import reelworks as rw
from reelworks.commands.main import app
from reelworks.core import annexes, executors
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder
from reelworks.inference import previews
from reelworks.reports import html
from reelworks.training.observers import observer
from reelworks.training.recipe import annex_tables, recipe_file

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-an-annex.md"
PACKAGE = _PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]


@contextmanager
def fresh_import(name: str) -> Iterator[None]:
    """Import a module anew within the block, and forget it afterwards."""
    kept = sys.modules.pop(name, None)
    importlib.invalidate_caches()
    yield
    sys.modules.pop(name, None)
    if kept is not None:
        sys.modules[name] = kept


@pytest.fixture
def bicycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with an annex."""
    installed = tmp_path / "site-packages"
    about = installed / "bicycle-1.0.dist-info"
    about.mkdir(parents=True)
    (installed / "bicycle_annex.py").write_text(PACKAGE, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bicycle\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[{annexes.GROUP}]\nbicycle = bicycle_annex:ANNEX\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(installed))
    annexes._points.cache_clear()
    yield
    annexes._points.cache_clear()


@pytest.mark.usefixtures("bicycle")
def test_its_command_is_one_of_the_command_line() -> None:
    runner = CliRunner()
    assert "ride " in runner.invoke(app, ["--help"]).output
    done = runner.invoke(app, ["ride", "--wheels", "3"])
    assert (done.exit_code, done.stdout) == (0, "riding on 3 wheels\n")
    assert runner.invoke(app, ["fly"]).exit_code == 2


@pytest.mark.usefixtures("bicycle")
@pytest.mark.slow
def test_its_observer_sees_trainings(tiny: Any, tmp_path: Path) -> None:
    best = {"every_steps": 1, "keep_last": 1, "keep_best": {"metric": "bicycle/turns", "mode": "min"}}
    table = {"bicycle": {"turns_per_clip": 0.5}}
    rw.train(recipe_file.parse(tiny(train={"max_steps": 3}, validation={"split": 0.0}, annex=table, checkpoints=best)))
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [1, 3]
    metrics = CheckpointFolder(tmp_path / "run" / "checkpoints").info(3).metrics
    kept = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8"))
    assert metrics["bicycle/turns"] > 0
    assert kept["annex"] == {"bicycle": {"turns_per_clip": 0.5}}


@pytest.mark.usefixtures("bicycle")
@pytest.mark.slow
def test_what_its_observer_keeps_goes_on_with_a_training_and_is_told_in_the_report(tiny: Any, tmp_path: Path) -> None:
    changes = {"validation": {"split": 0.0}, "annex": {"bicycle": {"turns_per_clip": 100.0}}}
    for name, ends in (("whole", (4,)), ("resumed", (2, 4))):
        for max_steps in ends:
            rw.train(recipe_file.parse(tiny(name, train={"max_steps": max_steps}, **changes)))
    turns = [CheckpointFolder(tmp_path / name / "checkpoints").info(4).metrics for name in ("whole", "resumed")]
    assert turns[0] == turns[1]
    report = html.write(RunFolder(tmp_path / "resumed")).read_text(encoding="utf-8")
    assert f"<p>{turns[1]['bicycle/turns']:.0f} turns</p>" in report
    assert '<a href="#wheels">Wheels</a>' in report


@pytest.mark.usefixtures("bicycle")
def test_its_metrics_are_those_of_its_name(tiny: Any) -> None:
    for metric in ("bicycle/turns", "0.5 * bicycle/turns - 1 * validation/loss"):
        previews.require_measured(recipe_file.parse(tiny(checkpoints={"keep_best": {"metric": metric}})))
    for unknown in ("tricycle/turns", "bicycle", "vbench"):
        with refused("metric-not-measured", "checkpoints.keep_best.metric", says=f"{unknown} is not measured"):
            previews.require_measured(recipe_file.parse(tiny(checkpoints={"keep_best": {"metric": unknown}})))


@pytest.mark.usefixtures("bicycle")
def test_its_observer_may_not_replace_what_others_keep(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "site-packages" / "bicycle_annex.py").write_text(
        PACKAGE.replace("turns.txt", "cursor.json"), encoding="utf-8"
    )
    values = tiny(train={"max_steps": 2}, annex={"bicycle": {}})
    with fresh_import("bicycle_annex"), pytest.raises(ValueError, match=r"Odometer may not keep .*cursor.json"):
        rw.train(recipe_file.parse(values))


@pytest.mark.parametrize(
    ("name", "table", "code", "field"),
    [
        ("bicycle", {"turns": 1.0}, "unknown-key", "annex.bicycle.turns"),
        ("bicycle", {"turns_per_clip": "many"}, "wrong-type", "annex.bicycle.turns_per_clip"),
        ("bicycle", 3, "wrong-type", "annex.bicycle"),
        ("bicycles", {}, "annex-unknown", "annex.bicycles"),
    ],
)
@pytest.mark.usefixtures("bicycle")
def test_its_table_of_recipes_is_checked(tiny: Any, name: str, table: Any, code: str, field: str) -> None:
    with refused(code, field):
        recipe_file.parse(tiny(annex={name: table}))


def test_a_table_of_a_package_that_is_not_installed_is_refused(tiny: Any, tmp_path: Path) -> None:
    """Also in a file that is no run's."""
    values = tiny(annex={"bicycle": {}})
    file = tmp_path / "recipe.toml"
    file.write_text(tomli_w.dumps(values), encoding="utf-8")
    for read in (lambda: recipe_file.parse(values), lambda: recipe_file.load(file)):
        with refused("annex-unknown", "annex.bicycle"):
            read()


@pytest.mark.parametrize("stages", [[], [{"name": "only", "steps": 2}]])
def test_a_run_is_read_without_the_package_that_it_was_trained_with(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, stages: list[Any]
) -> None:
    """Which is told once; to train on needs it."""
    values = tiny(stage=stages) if stages else tiny(train={"max_steps": 2})
    run = RunFolder(tmp_path / "run")
    run.create(1)
    run.recipe_file.write_text(tomli_w.dumps(values | {"annex": {"unicycle": {"turns": 3}}}), encoding="utf-8")
    annex_tables._tell_of_missing.cache_clear()
    for _ in range(2):
        recipe = recipe_file.load(run.recipe_file)
        assert [one.annex for one in recipe_file.each_stage(recipe)] == [{"unicycle": {"turns": 3}}]
    (warning,) = caplog.messages
    assert "unicycle, which is not installed" in warning
    with refused("annex-unknown", "annex.unicycle"):
        rw.train(recipe)


@pytest.mark.usefixtures("bicycle")
def test_its_route_is_one_of_the_page(tmp_path: Path) -> None:
    with page_client.client(tmp_path) as page:
        assert page.get("/api/wheels").json() == {"wheels": 2}


def noting(used: list[str], method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, which notes its name with each call."""

    def noted(*args: Any) -> Any:
        used.append(method.__name__)
        return method(*args)

    return noted


@pytest.mark.usefixtures("bicycle")
@pytest.mark.slow
def test_its_engine_scans_measures_and_encodes(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, pedals = list[str](), importlib.import_module("bicycle_annex").Pedals
    for name in ("pool", "run_actors"):
        monkeypatch.setattr(pedals, name, noting(used, getattr(pedals, name)))
    stored = {}
    for engine in ("local", "pedals"):
        folder = str(tmp_path / engine)
        changes = {"catalog": f"{folder}-catalog", "encode": {"store": True, "folder": folder}}
        file = tmp_path / f"{engine}.toml"
        file.write_text(recipe_file.dump(recipe_file.parse(tiny(data={"num_workers": 0}, **changes))), encoding="utf-8")
        for words in (["encode", str(file)], ["measure", f"{folder}-catalog", "--only", "exposure"]):
            done = CliRunner().invoke(app, [*words, "--engine", engine])
            assert done.exit_code == 0, done.output
        rows = rw.Catalog.open(f"{folder}-catalog").live().to_table().to_pylist()
        stored[engine] = checksums(tmp_path / engine), rows
    assert stored["pedals"] == stored["local"]
    assert used == ["pool", "run_actors", "pool"]


def test_an_engine_that_nobody_brings_is_refused_with_those_that_there_are(tmp_path: Path, footage: Path) -> None:
    with refused("engine-unknown", "engine", says="there is no such engine.*give one of local, ray, or"):
        rw.Catalog.scan(footage, to=tmp_path / "catalog", engine="pedals")


@pytest.mark.parametrize(("content", "told"), [("import nowhere", "ModuleNotFoundError"), ("ANNEX = 3", "int: 3")])
@pytest.mark.usefixtures("bicycle")
def test_one_that_is_broken_is_named(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "site-packages" / "bicycle_annex.py").write_text(content, encoding="utf-8")
    with fresh_import("bicycle_annex"), refused("annex-broken", "entry point bicycle of reelworks.annexes", says=told):
        annexes.from_outside()


@pytest.mark.parametrize("tables", [{}, {"other": {}}])
@pytest.mark.usefixtures("bicycle")
def test_one_that_is_broken_is_no_matter_of_a_recipe_without_its_table(
    tiny: Any, tmp_path: Path, tables: dict[str, Any]
) -> None:
    (tmp_path / "site-packages" / "bicycle_annex.py").write_text("import nowhere", encoding="utf-8")
    with fresh_import("bicycle_annex"):
        if tables:
            with refused("annex-unknown", "annex.other"):
                recipe_file.parse(tiny(annex=tables))
        else:
            recipe = recipe_file.parse(tiny(annex=tables, checkpoints={"keep_best": {"metric": "validation/loss"}}))
            annex_tables.require(recipe.annex)
            previews.require_measured(recipe)


def telling(code: str, section: str = "bicycle_annex:tell") -> str:
    """Code of a package with a section of reports."""
    return f"from reelworks.core.annexes import *\ndef tell(run): {code}\nANNEX = Annex(sections=({section!r},))"


@pytest.mark.parametrize(
    ("package", "told"),
    [
        (PACKAGE, None),
        (telling("raise KeyError('turns')"), "bicycle_annex:tell.*KeyError: 'turns'"),
        (telling("raise UserError('flat', code='a', remedy='pump')"), "annex bicycle.*flat"),
        (telling("return '<p>turns</p>'"), "bicycle_annex:tell.*TypeError: .*str"),
        (telling("return", "nowhere:tell"), "nowhere:tell.*ModuleNotFoundError"),
        ("import nowhere", "bicycle.*ModuleNotFoundError"),
    ],
)
@pytest.mark.usefixtures("bicycle")
def test_a_run_that_knows_nothing_of_it_has_its_report(
    package: str, told: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "site-packages" / "bicycle_annex.py").write_text(package, encoding="utf-8")
    bare = RunFolder(tmp_path / "bare")
    bare.create()
    for run in (bare, *([] if told else [fabricate.make(tmp_path / "trained")])):
        caplog.clear()
        with fresh_import("bicycle_annex"):
            assert html.write(run).read_text(encoding="utf-8").endswith("</html>")
        assert bool(told) == bool(re.search(told or "bicycle", caplog.text))


@pytest.mark.parametrize(
    ("part", "use"),
    [
        ("commands", lambda values: CliRunner().invoke(app, ["ride"], catch_exceptions=False)),
        ("table", recipe_file.parse),
        ("observers", lambda values: observer.require(recipe_file.parse(values))),
        ("engines", lambda values: executors.connect_elsewhere("pedals")),
    ],
)
@pytest.mark.usefixtures("bicycle")
def test_a_part_that_fails_is_told_with_its_package(
    part: str, use: Callable[..., Any], tiny: Any, tmp_path: Path
) -> None:
    values = tiny(annex={"bicycle": {}})
    package = PACKAGE + "\n\ndef fail(*_, **__): raise KeyError('turns')\nKIND.require = fail\npedal = fail\n"
    if part in ("commands", "table"):
        package = PACKAGE.replace("bicycle_annex:ride", "bicycle_annex:fail").replace("annex:Wheels", "annex:fail")
    (tmp_path / "site-packages" / "bicycle_annex.py").write_text(package, encoding="utf-8")
    with (
        fresh_import("bicycle_annex"),
        refused("annex-broken", "entry point bicycle of reelworks.annexes", says="turns|fail"),
    ):
        use(values)


@pytest.mark.parametrize("place", ["nowhere:routes", "bicycle_annex:ride"])
@pytest.mark.usefixtures("bicycle")
def test_the_page_is_served_without_routes_that_fail(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = PACKAGE.replace("bicycle_annex:routes", place)
    (tmp_path / "site-packages" / "bicycle_annex.py").write_text(package, encoding="utf-8")
    with fresh_import("bicycle_annex"), page_client.client(tmp_path) as page:
        assert page.get("/api/about").status_code == 200
    assert re.search(f"routes of the annex bicycle are left out.*{place}", caplog.text)


def test_without_it_there_is_no_such_command() -> None:
    assert CliRunner().invoke(app, ["ride"]).exit_code == 2
