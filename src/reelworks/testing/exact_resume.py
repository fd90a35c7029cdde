"""Does a loader that was loaded from a state give what the uninterrupted one gives? For any loader."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np


class StatefulLoader(Protocol):
    """An iterable whose place can be taken and given back, as torchdata's `StatefulDataLoader` and ours are."""

    def __iter__(self) -> Iterator[Any]:
        """Give the steps that are left."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Take the place."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a place."""
        ...


def assert_exact_resume(
    make_loader: Callable[[], StatefulLoader],
    *,
    steps: int = 20,
    at: Iterable[int] | None = None,
    content: Callable[[Any], Any] | None = None,
) -> None:
    """Assert that a loader goes on exactly where a state was taken.

    The state is taken after each of `at` steps, pickled, and loaded into a fresh loader, whose steps are compared
    with the uninterrupted ones: tensors and arrays by every byte, with their dtypes. Loaders that end with an epoch
    are begun again.

    Args:
        make_loader: Makes a fresh loader, always of the same data.
        steps: Steps that are compared.
        at: Steps after which a state is taken; None takes 0, 1, the middle and the last but one.
        content: What of a step is compared; None compares all of it.

    Raises:
        AssertionError: A resumed loader gives another step; names the place of the state, the step and the part.
        ValueError: The loader gives no step.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> rw.testing.assert_exact_resume(lambda: rw.Loader(sample_dataset(), micro_batches_per_step=2), steps=6)
    """
    pick = content or (lambda step: step)
    places = sorted({0, 1, steps // 2, steps - 1} if at is None else set(at))
    whole: list[Any] = []
    states: dict[int, bytes] = {}
    loader = make_loader()
    if 0 in places:
        states[0] = pickle.dumps(loader.state_dict())
    for i, step in enumerate(_steps(loader, steps), 1):
        whole.append(_plain(pick(step)))
        if i in places:
            states[i] = pickle.dumps(loader.state_dict())
    for place, state in states.items():
        resumed = make_loader()
        resumed.load_state_dict(pickle.loads(state))
        for i, step in enumerate(_steps(resumed, steps - place), place):
            differing = _differing(whole[i], _plain(pick(step)), "step")
            assert differing is None, f"resumed after {place} steps, step {i + 1} differs: {differing}"


def _steps(loader: StatefulLoader, number: int) -> Iterator[Any]:
    """So many steps, over the ends of epochs."""
    given = 0
    while given < number:
        before = given
        for step in loader:
            yield step
            given += 1
            if given == number:
                return
        if given == before:
            raise ValueError("the loader gives no step")


def _plain(value: Any) -> Any:
    """A value as nested dicts and lists of arrays and plain values, which compare."""
    if hasattr(value, "detach"):  # a tensor; numpy knows no bfloat16
        tensor = value.detach().cpu().contiguous()
        return (
            str(tensor.dtype),
            tuple(tensor.shape),
            tensor.flatten().view(dtype=_bytes()).numpy().tobytes(),
        )
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, str | bytes | int | float | bool | None | np.generic):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Iterable):
        return [_plain(one) for one in value]
    return value


def _bytes() -> Any:
    import torch

    return torch.uint8


def _differing(a: Any, b: Any, name: str) -> str | None:
    """Name of the first part that differs; None where nothing does."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next((found for key in a if (found := _differing(a[key], b[key], f"{name}.{key}"))), None)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        parts = enumerate(zip(a, b, strict=True))
        return next((found for i, (x, y) in parts if (found := _differing(x, y, f"{name}[{i}]"))), None)
    return None if a == b or (a != a and b != b) else name
