"""Configs with anything in place of their values become a recipe that loads, or one error of their reader; never a traceback."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from former_configs import GOLDEN, converted, fates
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refused import refused

from reelworks.annexes.imports import files
from reelworks.annexes.imports.files import ConfigFile
from reelworks.annexes.imports.importer import TRAINERS
from reelworks.annexes.imports.rules import Fate
from reelworks.core import system, user_files
from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.storage import file_facts

TEXTS = ["", "none", "ünï\x00\x07", "a\nb", "1e-4", "C:\\x\\y", "\ud800", "{text} {", "512x512", "x" * 5000]
NUMBERS = [0, -1, 1, 10**30, -5.5, float("nan"), float("inf"), 3.0, 0.5]
STRANGE = [None, True, False, [], [1], ["x", None], {}, {"a": {"b": [1, {"c": 2}]}}, [{"a": 1}], *TEXTS, *NUMBERS]
SEEDS = {
    "ai-toolkit-1": (yaml.safe_load((GOLDEN / "ai-toolkit-1.yaml").read_text(encoding="utf-8")), None),
    "ai-toolkit-2": (yaml.safe_load((GOLDEN / "ai-toolkit-2.yaml").read_text(encoding="utf-8")), None),
    "simpletuner-1": tuple(
        json.loads((GOLDEN / f"simpletuner-1{part}.json").read_text(encoding="utf-8")) for part in ("", "-data")
    ),
    "simpletuner-2": (
        tomllib.loads((GOLDEN / "simpletuner-2.toml").read_text(encoding="utf-8")),
        json.loads((GOLDEN / "simpletuner-2-data.json").read_text(encoding="utf-8")),
    ),
}


def places(values: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, inner in items:
        yield (*above, key)
        yield from places(inner, (*above, key))


def replaced(values: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        values = values[key]
    values[place[-1]] = value


def imported(folder: Path, name: str, main: Any, data: Any) -> None:
    trainer = name.rpartition("-")[0]
    files = [folder / "a.json"]
    files[0].write_text(json.dumps(main), encoding="utf-8")
    if data is not None:
        files.append(folder / "b.json")
        files[1].write_text(json.dumps(data), encoding="utf-8")
    try:
        made, _ = converted(folder, *files, trainer=trainer)
    except UserError:
        return
    assert fates(made)
    assert "hf_secretsecret" not in made.text + str(made.keys)
    assert TRAINERS[trainer].buckets(TRAINERS[trainer].read([ConfigFile(file) for file in files]), 0) is not None


@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 3000, "~nobody-of-this-name/x", "a\0b", "", "."])
def test_any_text_may_be_the_name_of_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    found = user_files.existing(name)
    assert found is None or found.is_dir()
    assert file_facts.is_pipeline(name)
    with refused("file-unreadable", "FILE"):
        files.ConfigFile(tmp_path / "config.json").beside(name)


def test_anything_in_place_of_a_value(tmp_path: Path) -> None:
    check(tmp_path, 20)


@pytest.mark.slow
def test_anything_in_place_of_several_values(tmp_path: Path) -> None:
    check(tmp_path, 400)


FULL = {
    "ai-toolkit": ["ai-toolkit-1.yaml"],
    "diffusion-pipe": ["diffusion-pipe-1.toml", "diffusion-pipe-1-dataset.toml"],
    "onetrainer": ["onetrainer-1.json", "onetrainer-1-concepts.json"],
    "simpletuner": ["simpletuner-1.json", "simpletuner-1-data.json"],
}


@pytest.mark.parametrize("trainer", FULL)
@pytest.mark.parametrize("are_all", [False, True])
@pytest.mark.quick_cases(4)
def test_any_model_can_be_trained_instead(tmp_path: Path, trainer: str, are_all: bool) -> None:
    for file in (GOLDEN / name for name in FULL[trainer]):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    if trainer == "onetrainer":  # layers are chosen by parts of their names
        config = json.loads((tmp_path / "onetrainer-1.json").read_text(encoding="utf-8"))
        (tmp_path / "onetrainer-1.json").write_text(json.dumps({**config, "layer_filter": "attn"}), encoding="utf-8")
    files = [tmp_path / name for name in FULL[trainer]]
    presets = [name for name, preset in registry.PRESETS.items() if preset.release is not None]
    presets = [name for name in presets if registry.PRESETS[name].release.weights is not None]
    if not are_all:  # one of those that importers tell from one another by nothing but their name
        known = {name: (registry.PRESETS[name], registry.PRESETS[name].config) for name in presets}
        kinds = {name: (p.fps, p.switch_timestep is None, type(c), c.pictures_only) for name, (p, c) in known.items()}
        presets = {(kinds[name], c.conditioning.companions.needs): name for name, (_, c) in known.items()}.values()
    for preset in presets:
        made, recipe = converted(tmp_path, *files, trainer=trainer, model=preset)
        assert fates(made)
        assert recipe.model.name == preset


def check(folder: Path, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(SEEDS)))
        parts = copy.deepcopy(SEEDS[name])
        for _ in range(data.draw(st.integers(1, 4))):
            part = data.draw(st.sampled_from([part for part in parts if part]))
            place = data.draw(st.sampled_from([*places(part)]))
            replaced(part, place, copy.deepcopy(data.draw(st.sampled_from(STRANGE))))
        imported(folder, name, *parts)

    run()


@pytest.mark.parametrize("text", ["", "[]", "[[]]", "{", "\x00", "null", "\ufeff{}", "[" * 10_000])
@pytest.mark.parametrize("trainer", ["ai-toolkit", "simpletuner"])
def test_files_that_are_no_config_are_refused(tmp_path: Path, trainer: str, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with refused("config-unreadable"):
        converted(tmp_path, path, trainer=trainer)


def multiplied(inner: str, table: bool) -> str:
    """YAML of some hundred letters that stands for 10⁹ values."""
    lines = [f"a0: &a0 {inner}"]
    for i in range(1, 9):
        items = [f"k{k}: *a{i - 1}" if table else f"*a{i - 1}" for k in range(10)]
        lines.append(f"a{i}: &a{i} " + "{}[]"[0 if table else 2] + ", ".join(items) + "{}[]"[1 if table else 3])
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        multiplied("[x, y]", False),
        multiplied("{x: 1}", True),
        "z: &z [*z]",
        "z: &z {a: *z}",
        "z: " + "[" * 900 + "]" * 900,
    ],
    ids=["lists", "tables", "a list in itself", "a table in itself", "nested"],
)
def test_what_a_few_lines_of_yaml_can_stand_for_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{yaml.safe_dump(SEEDS['ai-toolkit-1'][0])}\n{text}", encoding="utf-8")
    with refused("config-unreadable", "FILE"):
        converted(tmp_path, path, trainer="ai-toolkit")


def test_a_byte_order_mark_and_a_key_that_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '\ufeff{"model_family": "wan", "model_family": "flux", "model_flavour": "schnell"}', encoding="utf-8"
    )
    _, recipe = converted(tmp_path, path)
    assert recipe.model.name == "flux-schnell"


@pytest.mark.parametrize("folder", ["C:\\runs\\mug", "D:/runs/mug", "..\\runs\\mug", "runs/mug", "/runs/mug"])
@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("a.sh", "python sdxl_train_network.py --network_module networks.lora --output_dir 'FOLDER'"),
        ("a.json", {"model_type": "FLUX_DEV_1", "training_method": "LORA", "workspace_dir": "FOLDER"}),
        ("config.json", {"model_family": "flux", "model_type": "lora", "output_dir": "FOLDER"}),
    ],
)
def test_a_run_is_put_into_no_folder_of_another_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, config: Any, folder: str, windows: bool
) -> None:
    """Elsewhere, a training would make a folder that has such a name."""
    monkeypatch.setattr(system, "WINDOWS", windows)
    text = config.replace("FOLDER", folder) if isinstance(config, str) else json.dumps(config)
    text = text.replace("FOLDER", json.dumps(folder)[1:-1])
    (tmp_path / name).write_text(text, encoding="utf-8")
    made, recipe = converted(tmp_path, tmp_path / name, model="flux-dev" if name == "a.sh" else None)
    kept = windows or ("\\" not in folder and ":" not in folder)
    assert {key.fate for key in made.keys if "output = " in key.remark} == {Fate.TAKEN if kept else Fate.TO_FILL_IN}
    assert recipe.output.startswith(folder) if kept else recipe.output == "runs/imported"
