"""Trackers that fail, that are not installed, and recipes without any."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_recipe
from pydantic import ValidationError
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.run.config import ADDED_TRACKERS, LoggingConfig
from reelworks.data.run.folder import RunFolder
from reelworks.training.observers import trackers
from reelworks.training.observers.trackers import Guarded
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe


class Fragile:
    """A tracker that works until it is to fail."""

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in, self.logged, self.closed = fails_in, [], False

    def _maybe(self, what: str) -> None:
        if self.fails_in == what:
            raise ConnectionError("no route\nto host")

    def log(self, step: int, values: Any) -> None:
        self._maybe("log")
        self.logged.append((step, dict(values)))

    def show(self, step: int, files: Any, prompts: Any) -> None:
        self._maybe("show")

    def close(self, *, failed: bool) -> None:
        self._maybe("close")
        self.closed = True


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *args: said.append(str(text) % args))
    return said


@pytest.mark.parametrize("where", ["log", "show", "close", "start"])
def test_a_tracker_that_fails_is_told_once_and_left_out(told: list[str], where: str) -> None:
    inner = Fragile(where)

    def start() -> Fragile:
        inner._maybe("start")
        return inner

    tracker = Guarded("mine", start)
    for step in (1, 2):
        tracker.log(step, {"loss": 0.5, "bad": math.nan})
        tracker.show(step, [Path("a.png")], ["a"])
    tracker.close(failed=False)
    assert told == ["mine failed, and logs nothing more: no route"]
    assert not inner.closed
    assert inner.logged == {"show": [(1, {"loss": 0.5})], "close": [(s, {"loss": 0.5}) for s in (1, 2)]}.get(where, [])


def test_a_tracker_that_never_ends_is_left_behind(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Fragile):
        def close(self, *, failed: bool) -> None:
            time.sleep(0.3)

    monkeypatch.setattr(trackers, "_CLOSE_SECONDS", 0.01)
    Guarded("mine", Slow).close(failed=True)
    assert "has not finished" in told[0]


def test_a_package_that_is_missing_and_settings_without_trackers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install wandb"):
        trackers.require_installed(LoggingConfig(trackers=["wandb"]))
    trackers.require_installed(LoggingConfig())
    base = {"version": 1, "output": "o", "dataset": [{"path": "d"}], "train": {"max_steps": 1}}
    base["bucket"] = [{"resolution": "32px", "num_frames": 1, "batch_size": 1}]
    with pytest.raises(UserError) as refused:
        recipe_file.parse({**base, "logging": {"tags": ["a"]}})
    assert refused.value.code == "key-without-effect"


def test_a_tracker_of_ones_own_is_named_by_recipes_and_gets_what_a_run_logs(tmp_path: Path) -> None:
    """It needs no package of its name; no other tracker may have it, and recipes that do not name it have none."""
    made: list[tuple[Path, Fragile]] = []

    def begin(run: RunFolder, recipe: Recipe) -> Fragile:
        made.append((run.path, Fragile()))
        return made[-1][1]

    with pytest.raises(ValidationError, match="wandb"):
        LoggingConfig(trackers=["mine"])
    trackers.register("mine", begin)
    try:
        for name in ("mine", "wandb"):
            with refused("duplicate-tracker-name", says=name):
                trackers.register(name, begin)
        values = tiny_recipe.values("unused", str(tmp_path)) | {"logging": {"trackers": ["mine"]}}
        recipe = recipe_file.parse(values)
        trackers.require_installed(recipe.logging)
        started = trackers.start(RunFolder(tmp_path), recipe, 0)
        for each in started:
            each.log(1, {"loss": 0.5})
            each.close(failed=False)
        ((path, mine),) = made
        assert (path, mine.logged, mine.closed) == (tmp_path, [(1, {"loss": 0.5})], True)
    finally:
        del ADDED_TRACKERS["mine"]
    plain = recipe_file.parse(tiny_recipe.values("unused", str(tmp_path)))
    for each in trackers.start(RunFolder(tmp_path), plain, 0):
        each.close(failed=False)
    assert len(made) == 1


@pytest.mark.parametrize(("name", "logs_in"), [("wandb", True), ("wandb", False), ("trackio", True)])
def test_packages_get_curves_previews_with_their_prompts_and_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str], name: str, logs_in: bool
) -> None:
    """Each value beside its step, and each start in the run of the folder; a run that cannot log in is kept there."""
    begun: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []

    def init(*project: str, **options: Any) -> Any:
        begun.append(dict.fromkeys(["project"], *project) | options)
        return SimpleNamespace(
            offline=options.get("mode") == "offline",
            url="",
            define_metric=lambda *_, **__: None,
            log=lambda values, **more: calls.append(values | more),
            finish=lambda **code: calls.append({"end": code.get("exit_code", 1)}),
        )

    package = SimpleNamespace(
        init=init,
        Settings=dict,
        setup=lambda: SimpleNamespace(settings=SimpleNamespace(mode="online")),
        login=lambda prompt: logs_in or prompt,
        Image=lambda path, caption: ("picture", path, caption),
        Video=lambda path, caption, **_: ("clip", path, caption),
    )
    monkeypatch.setitem(sys.modules, name, package)
    run = RunFolder(tmp_path)
    run.create()
    logging = {"trackers": [name], "project": "boats", "name": "first"}
    recipe = recipe_file.parse(tiny_recipe.values("unused", str(tmp_path)) | {"logging": logging})
    tracker: Any = {"wandb": trackers.Wandb, "trackio": trackers.Trackio}[name](run, recipe)
    tracker.log(3, {"loss": 0.5, "rate": 1.0})
    tracker.show(3, [Path("a.png"), Path("b.mp4")], ["a kite", "waves"])
    tracker.close(failed=True)
    previews = {"samples/a": ("picture", "a.png", "a kite"), "samples/b": ("clip", "b.mp4", "waves")}
    assert calls == [{"loss": 0.5, "rate": 1.0, "step": 3}, previews | {"step": 3}, {"end": 1}]
    (started,) = begun
    assert (started["project"], started["config"]) == ("boats", trackers.config_of(recipe))
    known = {"wandb": ("first", run.info().id), "trackio": (f"first-{run.info().id[:6]}", None)}
    assert (started["name"], started.get("id")) == known[name]
    assert started.get("resume") == ("allow" if logs_in else None)
    assert started.get("mode") == (None if logs_in else "offline")
    assert ["no API key is configured" in text for text in told] == [True] * (not logs_in)


@pytest.mark.parametrize(
    "place",
    [
        "alice/secret/{}",
        "/home/alice/secret/{}",
        "~/secret/{}",
        "../secret/{}/",
        r"C:\Users\alice\{}",
        r"\\secret\alice\{}",
        "s3://alice:secret@bucket/{}",
        "https://secret.example/alice/{}?sig=secret#alice",
        "zip://secret/alice::https://secret.example/{}?sig=secret",
    ],
)
def test_trackers_get_the_recipe_without_folders_hosts_and_secrets(tmp_path: Path, place: str) -> None:
    """Of a place its last name is left, by which runs can be compared; what publishing leaves out is left out."""
    mirror = {"url": "s3://secret/run", "options": {"endpoint_url": "https://secret.example"}}
    values = tiny_recipe.values(str(tmp_path), str(tmp_path)) | {"checkpoints": {"every_steps": 7, "mirror": mirror}}
    parsed = recipe_file.parse(values | {"samples": {"prompts": ["a cat and/or a dog"]}})
    weights = parsed.model.model_copy(update={"weights": place.format("wan")})
    samples = parsed.samples.model_copy(update={"source": [place.format("a.png"), place.format("b.png")]})
    private = {"exclude_file": place.format("left.txt"), "catalog": place.format("catalog")}
    parsed = parsed.model_copy(update={"output": place.format("out"), "model": weights, "samples": samples, **private})
    said = trackers.config_of(parsed)
    assert (said["output"], said["model"]["weights"], said["samples"]["source"]) == ("out", "wan", ["a.png", "b.png"])
    assert not said.keys() & {*private, "annex", "logging"}
    assert not any(word in str(said) for word in ("alice", "secret", str(tmp_path.parent)))
    assert said["dataset"][0]["path"] == tmp_path.name
    assert said["checkpoints"]["every_steps"] == 7
    assert said["samples"]["prompts"] == ["a cat and/or a dog"]
