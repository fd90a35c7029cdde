"""TOML texts with other values: they parse to exactly these, and comments stay where their keys stay."""

from __future__ import annotations

import copy
import json
import random
import tomllib
from typing import Any

import pytest

from reelworks.training.recipe import toml_text

TEXT = '''# A LoRA of my cat.
version = 1

# what is trained
[[dataset]]
path = "a # b"   # the path
name = "x"

[[bucket]]
resolution = "256px"  # large
num_frames = [1,
  17,  # inner
]
batch_size = 4 # four

[[bucket]]
resolution = "128px"
num_frames = 1

[train]  # how
max_steps = 100
note = """
[not a header]
key = 1
"""
[checkpoints.keep_best]
n = 1
[model]
lora.rank = 3
opts = { a = 1, "b c" = "x" }
'''
VALUES: list[Any] = [1, 1.5, True, "text with # and =", 'quoted "word"', ["a", "b"], [1, 17], {"n": 1}, {}, [{"a": 1}]]


def places(values: Any) -> list[Any]:
    """All tables inside of a value."""
    inside = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    own = [values] if isinstance(values, dict) else []
    return own + [table for value in inside for table in places(value)]


@pytest.mark.parametrize("seed", range(60))
def test_any_change_parses_to_the_values_asked_for(seed: int) -> None:
    rng, values = random.Random(seed), tomllib.loads(TEXT)
    for _ in range(rng.randint(1, 5)):
        table = rng.choice(places(values))
        key = rng.choice([*table, "new", "new key"])
        if key in table and rng.random() < 0.3:
            del table[key]
        else:
            table[key] = copy.deepcopy(rng.choice(VALUES))
    text = toml_text.rewrite(TEXT, values)
    assert json.dumps(tomllib.loads(text), sort_keys=True) == json.dumps(values, sort_keys=True)
    assert toml_text.rewrite(text, tomllib.loads(text)) == text


def test_same_values_leave_the_text_as_it_is() -> None:
    assert toml_text.rewrite(TEXT, tomllib.loads(TEXT)) == TEXT


def test_only_the_changed_lines_change() -> None:
    values = tomllib.loads(TEXT)
    values["bucket"][0]["batch_size"] = [4, 2]
    values["bucket"][1]["keep_prob"] = 0.5
    values["train"]["max_steps"] = 200
    values["output"] = "runs/x"
    values["lora"] = {"rank": 4}
    changed = toml_text.rewrite(TEXT, values)
    expected = (
        TEXT.replace("batch_size = 4 # four", "batch_size = [4, 2] # four")
        .replace("num_frames = 1\n\n", "num_frames = 1\nkeep_prob = 0.5\n\n")
        .replace("100", "200")
        .replace("version = 1\n", 'version = 1\noutput = "runs/x"\n')
    )
    assert changed == expected + "\n[lora]\nrank = 4\n"


def test_a_number_and_a_truth_value_are_told_apart() -> None:
    assert toml_text.rewrite("a = 1  # one\n", {"a": True}) == "a = true  # one\n"
    assert toml_text.rewrite("a = 1\n", {"a": 1.0}) == "a = 1.0\n"


def test_elements_of_an_array_of_tables_come_and_go() -> None:
    values = tomllib.loads(TEXT)
    values["bucket"] = [*values["bucket"], {"resolution": "64px", "num_frames": [1]}]
    added = toml_text.rewrite(TEXT, values)
    assert '\n[[bucket]]\nresolution = "64px"\nnum_frames = [1]\n' in added
    assert "# how" in added
    taken = toml_text.rewrite(added, tomllib.loads(TEXT))
    assert (taken.count("[[bucket]]"), taken.count("#")) == (2, TEXT.count("#"))


def test_a_new_key_stands_above_what_belongs_to_the_next_table() -> None:
    text = "v = 1\n\n[a]\nx = 1\n\n# about b\n[b]\ny = 2\n"
    changed = toml_text.rewrite(text, {"v": 1, "a": {"x": 1, "z": [1] * 60}, "b": {"y": 3}})
    elements = "    1,\n" * 60
    assert changed == f"v = 1\n\n[a]\nx = 1\nz = [\n{elements}]\n\n# about b\n[b]\ny = 3\n"
    assert toml_text.rewrite(text, {"v": 1, "b": {"y": 2}}) == "v = 1\n\n# about b\n[b]\ny = 2\n"
