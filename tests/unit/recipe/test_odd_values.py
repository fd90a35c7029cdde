"""Whatever value a key of a recipe has, and a launcher's variable, it is accepted or refused in a few lines of words."""

from __future__ import annotations

import copy
import math
import typing
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe
from pydantic import BaseModel
from refused import refused

from reelworks.core import launcher, toml
from reelworks.core.errors import UserError
from reelworks.data.distributed import mesh
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

GOOD = tiny_recipe.least(
    bucket=[{"resolution": "32px", "num_frames": [1], "batch_size": [2]}],
    model={"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
    autoencoder={"stride": 8},
    text_encoder={"dim": 16, "max_length": 6},
)
ODD = (
    *(math.nan, math.inf, -math.inf, 1e300, -1, 0, 2**70, -(2**70), 16**9000, True, None),
    *("", "\x00", "nan", "../..", "\ud800", "x" * 100_000, "a b " * 30_000),
    *([], {}, [[[]]], [2**70], ["\x00"], [None, {}], ["x" * 1000] * 500, {"a": {"b": [1]}}),
)
PARTS = 6  # of the keys, one of which is tried here
Key = tuple[str | int, ...]


def tables(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from tables(argument)


def keys(table: type[BaseModel], above: Key = ()) -> Iterator[Key]:
    for name, field in table.model_fields.items():
        key = (*above, field.alias or name)
        yield key
        for inner in tables(field.annotation) if len(above) < 6 else ():
            yield from keys(inner, (*key, 0) if "list" in str(field.annotation) else key)


def changed(key: Key, value: Any) -> dict[str, Any]:
    values: Any = copy.deepcopy(GOOD)
    node = values
    for part, following in pairwise(key):
        empty: Any = [{}] if isinstance(following, int) else {}
        if isinstance(node, dict) and not isinstance(node.get(part), type(empty)):
            node[part] = empty
        node = node[part]
    node[key[-1]] = value
    return dict(values)


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, PARTS))])
def test_no_value_of_any_key_is_a_raw_error(part: int) -> None:
    found = list(dict.fromkeys(keys(Recipe)))
    assert len(found) > 250
    for key in found[part::PARTS]:
        for value in ODD:
            error = refusal(changed(key, value))
            assert len(str(error)) < 4000, (key, type(value))
            assert error is None or error.code != "value-invalid", f"it names neither its key nor a way out: {error}"


def refusal(values: dict[str, Any]) -> UserError | None:
    """Return the error, if there is one; any other error is raised."""
    try:
        recipe_file.parse(values)
    except UserError as error:
        return error
    return None


@pytest.mark.parametrize("key", ["output", "catalog", "dataset.0.path", "exclude_file", "checkpoints.mirror.url"])
def test_no_file_name_has_a_null_byte(key: str) -> None:
    with refused("value-not-allowed", key, says="null byte"):
        recipe_file.parse(changed(tuple(int(part) if part.isdigit() else part for part in key.split(".")), "a\0b"))


@pytest.mark.parametrize("key", ["x[0]", "int", "constrained-str", "]["])
def test_an_unknown_key_is_named_however_it_is_called(key: str) -> None:
    with refused("unknown-key", f"train.{key}"):
        recipe_file.parse(changed(("train", key), 1))


def test_an_override_is_one_value() -> None:
    values = recipe_file.with_overrides({}, ["train.max_steps=1\nlora.rank=9"])
    assert values == {"train": {"max_steps": "1\nlora.rank=9"}}


def test_a_long_value_is_not_repeated_whole() -> None:
    value = "some words " * 10_000
    error = UserError(f"it is {value}", code="x", field="a", value=value, remedy=f"write no {value}")
    assert len(str(error)) < 1000
    assert "(110,000 characters)" in str(error)
    assert error.value == value
    assert len(str(UserError("wrong", code="x", field="a", value=[value], remedy="mend it"))) < 300


def test_a_number_of_thousands_of_digits_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f"seed = 1{'0' * 5000}", encoding="utf-8")
    with refused("not-toml", "RECIPE"):
        recipe_file.load(tmp_path / "recipe.toml")
    with pytest.raises(ValueError, match="digits"):
        toml.parse(f"seed = 1{'0' * 5000}")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('path = "D:\\dogs"', "single quotes"),
        ('path = "C:\\users\\anna"', "single quotes"),
        ('path = "D:\\new"', "single quotes"),  # which is TOML, with a line break
        ('[[dataset]]\npaths = ["D:/dogs", "e:\\train\\"]', "single quotes"),
        ('caption = "one\\ntwo"\n[[dataset]', "correct it"),
    ],
)
def test_backslashes_of_windows_in_quotes_are_told_as_such(tmp_path: Path, text: str, remedy: str) -> None:
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    with refused("not-toml", "RECIPE", says=remedy) as caught:
        recipe_file.load(tmp_path / "recipe.toml")
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "x"), ("RANK", "-1"), ("WORLD_SIZE", "-2"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "1.5"),
     ("LOCAL_RANK", "?"), ("LOCAL_WORLD_SIZE", "0"), ("WORLD_SIZE", "9" * 30), ("RANK", "2"), ("MASTER_PORT", "no")],
)  # fmt: skip
def test_a_launcher_s_variable_that_is_wrong_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, number in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(variable, number)
    monkeypatch.setenv(name, value)
    with refused("launcher-variable-invalid", name), mesh.join():
        pass


def test_without_a_launcher_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launcher.place() == (0, 1)
