"""One function makes JSON of every result."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from reelworks.core import files, results


@dataclass(frozen=True)
class Side:
    JSON_KEYS: ClassVar = ("length", "half")

    length: float
    secret: int = 7

    @property
    def half(self) -> float:
        return self.length / 2


@dataclass(frozen=True)
class Square:
    from_: Path
    side: Side = field(metadata=results.INLINED)
    others: tuple[Side, ...] = ()
    named: dict[str, Side | None] = field(default_factory=dict)


def test_fields_are_keys_and_those_of_an_inlined_one_stand_among_them() -> None:
    made = Square(Path("a/b"), Side(3.0), (Side(4.0),), {"x": None, "y": Side(5.0)})
    expected = {
        "from": str(Path("a/b")), "length": 3.0, "half": 1.5, "others": [{"length": 4.0, "half": 2.0}],
        "named": {"x": None, "y": {"length": 5.0, "half": 2.5}},
    }  # fmt: skip
    assert results.as_json(made) == expected == json.loads(files.to_json(made))
    assert list(results.as_json(made)) == list(expected)


def test_an_inlined_value_that_is_none_has_no_keys() -> None:
    @dataclass(frozen=True)
    class Framed:
        inside: Side | None = field(metadata=results.INLINED)
        name: str = "frame"

    assert results.as_json(Framed(None)) == {"name": "frame"}
    assert results.as_json(Framed(Side(1.0))) == {"length": 1.0, "half": 0.5, "name": "frame"}


def test_numbers_of_arrays_are_numbers_and_what_json_does_not_know_is_refused() -> None:
    value = results.as_json([np.int64(3), np.float32(0.5), np.bool_(True)])
    assert list(map(type, value)) == [int, float, bool]
    with pytest.raises(TypeError, match="not JSON: set"):
        results.as_json({"a": {1}})
    with pytest.raises(TypeError, match="not JSON: ndarray"):
        files.to_json(np.zeros(2))
