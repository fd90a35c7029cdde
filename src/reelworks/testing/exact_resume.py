"""Check that any loader resumes exactly: loaded from a state, it yields the steps of the uninterrupted loader."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

# Loaders without an end are compared so far.
_MOST_STEPS = 1000
_MOST_SHOWN = 60  # characters of a value in a message


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
    steps: int | None = None,
    at: Iterable[int] | None = None,
    content: Callable[[Any], Any] | None = None,
) -> None:
    """Assert that a loader continues exactly where a state was taken.

    The state is taken after each of `at` steps, pickled, and loaded into a fresh loader, whose steps are compared
    with the uninterrupted ones up to the last. Values, their types, the types and order of keys, the dtypes, shapes and
    bytes of tensors and arrays must be equal: 1 is not 1.0, and a list is no tuple. NaN equals NaN.

    Args:
        make_loader: Returns a fresh loader of the same data.
        steps: Number of steps to compare; loaders that end with an epoch are iterated again. None compares an epoch, or
            the first 1000 steps of a longer one.
        at: Steps after which a state is taken, from 0 to one before the last; None takes 0, 1, the quarters, and the last
            but one.
        content: Returns the part of a step to compare; None compares the whole step.

    Raises:
        AssertionError: A resumed loader yields another step; names the position, the step, the part that differs and both
            values.
        ValueError: The loader yields no step, or `at` is empty or beyond the last step but one.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> rw.testing.assert_exact_resume(lambda: rw.Loader(sample_dataset(), micro_batches_per_step=2))
    """
    asked = None if at is None else sorted(set(at))
    if asked is not None and not asked:
        raise ValueError("at is empty, so nothing would be compared; leave it out for positions in the whole epoch")

    def read(step: Any) -> _Node:
        return _realised(step if content is None else content(step))

    digests: list[bytes] = []  # since the frames of an epoch do not fit into memory
    loader = make_loader()
    states = {0: pickle.dumps(loader.state_dict())}
    for number, step in enumerate(_steps(loader, steps), 1):
        digests.append(_digest(read(step)))
        if asked is None or number in asked:
            states[number] = pickle.dumps(loader.state_dict())
    last = len(digests)
    positions = sorted({0, 1, last // 4, last // 2, 3 * last // 4, last - 1} - {last}) if asked is None else asked
    if wrong := [position for position in positions if not 0 <= position < last]:
        raise ValueError(f"at = {wrong[0]} leaves no step to compare: there are {last}, so give 0 to {last - 1}")
    for position in positions:
        resumed = make_loader()
        resumed.load_state_dict(pickle.loads(states[position]))
        number = position
        for number, step in enumerate(_steps(resumed, last - position), position + 1):
            found = read(step)
            if _digest(found) != digests[number - 1]:
                expected = read(next(islice(_steps(make_loader(), number), number - 1, None)))
                known = _difference(expected, found, "step") if _digest(expected) == digests[number - 1] else None
                difference = known or "uninterrupted loaders do not agree on it either"
                raise AssertionError(f"resumed after {position} steps, step {number} differs: {difference}")
        if number != last:
            raise AssertionError(f"resumed after {position} steps, the loader ends after step {number}, not {last}")


def _steps(loader: StatefulLoader, number: int | None) -> Iterator[Any]:
    """Yield a number of steps, across epochs, or those of one epoch; fewer if the loader has no more."""
    left = _MOST_STEPS if number is None else number
    begun = False
    while left:
        before = left
        for step in islice(loader, left):
            yield step
            left -= 1
        if left == before:
            if not begun:
                raise ValueError("the loader yields no step")
            return
        begun = True
        if number is None:
            return


class _Node(NamedTuple):
    """A value whose iterables are realised: its type, and either its parts by name or what it is as a whole."""

    kind: str
    parts: list[tuple[str, _Node]]
    leaf: Any = None


def _realised(value: Any) -> _Node:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if hasattr(value, "detach"):  # a tensor
        return _Node(kind, [], value.detach().cpu().contiguous())
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return _Node(kind, [(".dtype", _realised(str(value.dtype))), ("", _realised(value.tolist()))])
    if isinstance(value, np.ndarray | str | bytes | int | float | complex | None | np.generic | type | Enum):
        return _Node(kind, [], value)
    if isinstance(value, Mapping):
        return _Node(kind, [(f"[{key!r}]", _realised(item)) for key, item in value.items()])
    if isinstance(value, Set):
        return _Node(kind, [(f"[{i}]", _realised(item)) for i, item in enumerate(sorted(value, key=repr))])
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if f.compare]
        return _Node(kind, [(f".{name}", _realised(getattr(value, name))) for name in fields])
    public = {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    parts = [(f".{name}", _realised(item)) for name, item in public.items()]
    if isinstance(value, Iterable):
        return _Node(kind, parts + [(f"[{i}]", _realised(item)) for i, item in enumerate(value)])
    says_nothing: object = object.__repr__
    if not parts and type(value).__repr__ is says_nothing:
        raise ValueError(f"values of type {kind} cannot be compared; give content=, which returns what can be")
    return _Node(kind, parts, None if parts else repr(value))


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray | np.generic) or hasattr(leaf, "detach")


def _bytes(leaf: Any) -> bytes:
    """Return the bytes of a value, by which NaN equals NaN and -0.0 is not 0.0."""
    if hasattr(leaf, "detach"):  # numpy knows no bfloat16
        from reelworks.data.checkpoint import safetensors_header

        return bytes(safetensors_header.raw(leaf).cpu().numpy().tobytes())
    return bytes(leaf.tobytes()) if _is_array(leaf) else repr(leaf).encode()


def _layout(leaf: Any) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}" if _is_array(leaf) else ""


def _digest(node: _Node) -> bytes:
    digest = hashlib.blake2b(f"{node.kind} {len(node.parts)} {_layout(node.leaf)} ".encode(), digest_size=16)
    digest.update(_bytes(node.leaf))
    for name, part in node.parts:
        digest.update(f"{len(name)} {name}".encode())
        digest.update(_digest(part))
    return digest.digest()


def _difference(expected: _Node, found: _Node, name: str) -> str | None:
    """Return the first part that differs, with both values; None if none does."""
    if expected.kind != found.kind:
        return f"{name} is {_shown(found)} of type {found.kind}, not {_shown(expected)} of type {expected.kind}"
    names, other = [key for key, _ in expected.parts], [key for key, _ in found.parts]
    if names != other:
        return f"{name} has {_listed(other, names)}, not {_listed(names, other)}"
    for (key, one), (_, two) in zip(expected.parts, found.parts, strict=True):
        if difference := _difference(one, two, name + key):
            return difference
    if (_layout(expected.leaf), _bytes(expected.leaf)) == (_layout(found.leaf), _bytes(found.leaf)):
        return None
    if _is_array(found.leaf) and found.leaf.shape and _layout(expected.leaf) == _layout(found.leaf):
        return _element(expected.leaf, found.leaf, name)
    return f"{name} is {_shown(found)}, not {_shown(expected)}"


def _element(expected: Any, found: Any, name: str) -> str:
    """Return the first element of two arrays of one shape that differs."""
    raw = [np.frombuffer(_bytes(leaf), dtype=np.uint8).reshape(math.prod(leaf.shape), -1) for leaf in (expected, found)]
    differs = (raw[0] != raw[1]).any(axis=1)
    place = tuple(int(i) for i in np.unravel_index(int(differs.argmax()), tuple(found.shape)))
    one, other = (leaf[place].item() for leaf in (expected, found))
    return f"{name}{list(place)} is {other!r}, not {one!r}; {int(differs.sum())} of {len(differs)} elements differ"


def _listed(names: list[str], others: list[str]) -> str:
    if len(names) != len(others) and all(name.startswith("[") and name[1:-1].isdigit() for name in names + others):
        return f"{len(names)} items"
    only = [name for name in names if name not in others]
    return f"the parts {', '.join(only or names)}"[:_MOST_SHOWN] if names else "no parts"


def _shown(node: _Node) -> str:
    if node.parts:
        return f"{len(node.parts)} parts"
    if _is_array(node.leaf) and node.leaf.shape:
        return _layout(node.leaf)
    return repr(node.leaf)[:_MOST_SHOWN]
