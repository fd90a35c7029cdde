"""The check of loaders finds every fault, says which, and compares all that it promises to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import reelworks as rw


class Source:
    """A loader whose steps a function returns by their number, and by whether it was resumed."""

    def __init__(self, content: Callable[[int, bool], Any], last: int = 8) -> None:
        self.content, self.last, self.at, self.resumed = content, last, 0, False

    def __iter__(self) -> Iterator[Any]:
        if self.at >= self.last:
            self.at = 0
        while self.at < self.last:
            self.at += 1
            yield self.content(self.at, self.resumed)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.resumed = state["at"], True


class Named:
    """An iterable with attributes, like a step."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


BF16 = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
DIFFERENT = {
    "int and float": (1, 1.0, r"step is 1\.0 of type float, not 1 of type int"),
    "int and bool": ({"a": 1}, {"a": True}, r"step\['a'\] is True of type bool, not 1 of type int"),
    "list and tuple": ([1, 2], (1, 2), "of type tuple, not 2 parts of type list"),
    "key types": ({1: "a"}, {"1": "a"}, r"step has the parts \['1'\], not the parts \[1\]"),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "step has the parts"),
    "a missing key": ({"a": 1}, {}, r"step has no parts, not the parts \['a'\]"),
    "length": ([1, 2], [1], "step has 1 items, not 2 items"),
    "text": ({"a": ["x", "y"]}, {"a": ["x", "z"]}, r"step\['a'\]\[1\] is 'z', not 'y'"),
    "dtype": (np.zeros(2, np.int32), np.zeros(2, np.int64), r"step is int64 \[2\], not int32 \[2\]"),
    "shape": (np.zeros((2, 1)), np.zeros((1, 2)), r"step is float64 \[1, 2\], not float64 \[2, 1\]"),
    "array element": (np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]), r"step\[1, 1\] is 5, not 4; 1 of 4"),
    "tensor element": (BF16, BF16.clone().fill_(1), r"step\[1\] is 1\.0, not 2\.0; 1 of 2 elements"),
    "tensor and array": (torch.zeros(2), np.zeros(2, np.float32), "of type numpy.ndarray, not"),
    "sign of zero": (0.0, -0.0, r"step is -0\.0, not 0\.0"),
    "numpy scalar": (np.float32(1), np.float64(1), "of type numpy.float64"),
    "set": ({1, 2}, {1, 3}, r"step\[1\] is 3, not 2"),
    "object array": (np.array([1, "a"], object), np.array([1, "b"], object), r"\[1\] is 'b', not 'a'"),
    "attribute": (Named(1), Named(2), r"step\.number is 2, not 1"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_difference_is_found_and_told_with_both_values(name: str) -> None:
    expected, found, says = DIFFERENT[name]
    with pytest.raises(AssertionError, match=says):
        rw.testing.assert_exact_resume(lambda: Source(lambda at, resumed: found if resumed else expected))
    for same in (expected, found):
        rw.testing.assert_exact_resume(lambda same=same: Source(lambda at, resumed: same))


def test_nan_equals_nan() -> None:
    values = {"float": math.nan, "array": np.array([math.nan]), "tensor": torch.tensor([math.nan])}
    rw.testing.assert_exact_resume(lambda: Source(lambda at, resumed: dict(values)))


@pytest.mark.parametrize("fault", [21, 37, 50])
def test_the_whole_epoch_is_compared(fault: int) -> None:
    def content(at: int, resumed: bool) -> dict[str, int]:
        return {"x": -at if resumed and at == fault else at}

    with pytest.raises(
        AssertionError, match=rf"resumed after 0 steps, step {fault} differs: step\['x'\] is -{fault}, not"
    ):
        rw.testing.assert_exact_resume(lambda: Source(content, last=50))
    rw.testing.assert_exact_resume(lambda: Source(content, last=50), steps=20)


def test_faults_of_the_next_epoch_are_found_as_far_as_steps_go() -> None:
    class Ends(Source):
        def __iter__(self) -> Iterator[Any]:
            if self.resumed and self.at == self.last:
                return
            yield from super().__iter__()

    rw.testing.assert_exact_resume(lambda: Ends(lambda at, resumed: at), steps=8)
    with pytest.raises(AssertionError, match="resumed after 0 steps, the loader ends after step 8, not 12"):
        rw.testing.assert_exact_resume(lambda: Ends(lambda at, resumed: at), steps=12)


@pytest.mark.parametrize(("at", "says"), [([], "at is empty"), ([8], "at = 8.*give 0 to 7"), ([-1, 2], "at = -1")])
def test_positions_that_would_compare_nothing_are_refused(at: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rw.testing.assert_exact_resume(lambda: Source(lambda at, resumed: at), at=at)


def test_a_loader_without_an_end_is_compared_so_far() -> None:
    rw.testing.assert_exact_resume(lambda: Source(lambda at, resumed: at, last=10**9))


def test_loaders_that_do_not_agree_without_a_resume_are_told() -> None:
    made = iter(range(1000))
    with pytest.raises(AssertionError, match="do not agree on it either"):
        rw.testing.assert_exact_resume(lambda: Source(lambda at, resumed: next(made)))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="give content="):
        rw.testing.assert_exact_resume(lambda: Source(lambda at, resumed: object()))
    rw.testing.assert_exact_resume(lambda: Source(lambda at, resumed: (object(), at)), content=lambda step: step[1])


def test_a_loader_that_yields_nothing_is_told() -> None:
    with pytest.raises(ValueError, match="yields no step"):
        rw.testing.assert_exact_resume(lambda: Source(lambda at, resumed: at, last=0))
