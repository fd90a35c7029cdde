"""Check that any loader resumes exactly: loaded from a state, it yields the steps of the uninterrupted loader."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

import numpy as np


class StatefulLoader(Protocol):
    """An iterable whose position can be saved and restored, such as torchdata's `StatefulDataLoader` and ours."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining steps."""

    def state_dict(self) -> dict[str, Any]:
        """Return the current position."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position."""


def assert_exact_resume(
    make_loader: Callable[[], StatefulLoader],
    *,
    steps: int = 20,
    at: Iterable[int] | None = None,
    content: Callable[[Any], Any] | None = None,
) -> None:
    """Assert that a loader continues exactly where a state was taken.

    The state is taken after each of `at` steps, pickled, and loaded into a fresh loader, whose steps are compared
    with the uninterrupted ones: tensors and arrays byte by byte, with their dtypes. Loaders that end with an epoch are
    iterated again.

    Args:
        make_loader: Returns a fresh loader of the same data.
        steps: Number of steps to compare.
        at: Steps after which a state is taken; None takes 0, 1, the middle and the last but one.
        content: Returns the part of a step to compare; None compares the whole step.

    Raises:
        AssertionError: A resumed loader yields another step; names the position, the step and the part that differs.
        ValueError: The loader yields no step.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> rw.testing.assert_exact_resume(lambda: rw.Loader(sample_dataset(), micro_batches_per_step=2), steps=6)
    """
    pick = content or (lambda step: step)
    positions = sorted({0, 1, steps // 2, steps - 1} if at is None else set(at))
    expected: list[Any] = []
    states: dict[int, bytes] = {}
    loader = make_loader()
    if 0 in positions:
        states[0] = pickle.dumps(loader.state_dict())
    for i, step in enumerate(_steps(loader, steps), 1):
        expected.append(_plain(pick(step)))
        if i in positions:
            states[i] = pickle.dumps(loader.state_dict())
    for position, state in states.items():
        resumed = make_loader()
        resumed.load_state_dict(pickle.loads(state))
        for i, step in enumerate(_steps(resumed, steps - position), position):
            differing = _differing(expected[i], _plain(pick(step)), "step")
            assert differing is None, f"resumed after {position} steps, step {i + 1} differs: {differing}"


def _steps(loader: StatefulLoader, number: int) -> Iterator[Any]:
    """Yield a number of steps, across epochs."""
    while number:
        left = number
        for step in islice(loader, left):
            yield step
            number -= 1
        if number == left:
            raise ValueError("the loader yields no step")


def _plain(value: Any) -> Any:
    """Convert a value to nested dicts and lists of bytes and plain values that can be compared."""
    if hasattr(value, "detach"):  # a tensor; numpy knows no bfloat16
        import torch

        tensor = value.detach().cpu().contiguous()
        return str(tensor.dtype), tuple(tensor.shape), tensor.flatten().view(dtype=torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, str | bytes | int | float | bool | None | np.generic):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return value


def _differing(a: Any, b: Any, name: str) -> str | None:
    """Return the name of the first part that differs, or None."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next((part for key in a if (part := _differing(a[key], b[key], f"{name}.{key}"))), None)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next((part for i, x in enumerate(a) if (part := _differing(x, b[i], f"{name}[{i}]"))), None)
    return None if a == b or (a != a and b != b) else name
