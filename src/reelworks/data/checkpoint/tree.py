"""Describe a state as JSON and named tensors, and build the same state again: values, their types, types of keys.

A node of the description is a JSON value for None, booleans, numbers, texts and lists, and an object with one tag for
everything else, such as `{"tuple": [...]}`, `{"dict": [[key, value], ...]}` or `{"tensor": name}`. Nothing in it is
executed: what has no tag of its own is stored as torch stores it, if torch also reads it with `weights_only`.
"""

from __future__ import annotations

import base64
import io
import json
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from reelworks.core.errors import UserError

Node: TypeAlias = Any  # JSON
Path: TypeAlias = tuple[Any, ...]  # keys and indices

# Longer payloads become tensors, which are written as they are.
_INLINE_BYTES = 1024
_RESERVED = "__metadata__"  # of the header of a .safetensors file
_LARGEST_JSON_INT = 1 << 63
_FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}


@dataclass(frozen=True)
class ObjectState:
    """The result of an object's `state_dict()` at the save; of an optimizer with the dtypes of its weights."""

    state: Any
    weight_dtypes: list[str] | None = None


class _Generator(NamedTuple):
    """Functions that return and set the state of a random generator, which has no `state_dict`."""

    get: Callable[[Any], Any]
    set: Callable[[Any, Any], object]


_GENERATORS: dict[type, _Generator] = {
    torch.Generator: _Generator(torch.Generator.get_state, torch.Generator.set_state),
    random.Random: _Generator(random.Random.getstate, random.Random.setstate),
    np.random.RandomState: _Generator(lambda live: live.get_state(), lambda live, state: live.set_state(state)),
    np.random.Generator: _Generator(
        lambda live: live.bit_generator.state, lambda live, state: setattr(live.bit_generator, "state", state)
    ),
}


def is_object(value: Any) -> bool:
    """Return whether a value is saved by its state: it has a `state_dict`, or is a random generator."""
    if type(value) in _GENERATORS:
        return True
    return not isinstance(value, type) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def state_of(value: Any) -> Any:
    """Return the state of an object."""
    generator = _GENERATORS.get(type(value))
    return value.state_dict() if generator is None else generator.get(value)


def set_state(value: Any, state: Any) -> None:
    """Load the state of an object into it."""
    generator = _GENERATORS.get(type(value))
    if generator is None:
        value.load_state_dict(state)
    else:
        generator.set(value, state)


def weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return an optimizer's weights in the order in which its state numbers them."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


@dataclass
class TreeEncoder:
    """Encode a state into nodes, one for each part; collects the tensors by name, and the names of those of modules."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    of_modules: set[str] = field(default_factory=set)
    _inside: set[int] = field(default_factory=set)

    def part(self, name: str, value: Any) -> Node:
        """Return the node of a part of a state.

        Raises:
            UserError: A value in it cannot be stored so that it comes back; names its place.
        """
        return self._node(value, (name,), objects=True)

    def _node(self, value: Any, path: Path, objects: bool) -> Node:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if abs(value) < _LARGEST_JSON_INT else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray) and kind is np.ndarray:
            return {"array": self._payload(_array_bytes(value, path), path)}
        if isinstance(value, np.generic):
            return {"scalar": self._payload(_array_bytes(np.asarray(value), path), path)}
        if kind in (bytes, bytearray):
            return {kind.__name__: self._payload(bytes(value), path)}
        if kind is complex:
            return {"complex": [self._node(part, path, objects) for part in (value.real, value.imag)]}
        if kind in _CONTAINERS:
            return self._within(value, path, lambda: _CONTAINERS[kind](self, value, path, objects))
        if objects and is_object(value):
            return self._within(value, path, lambda: self._object(value, path))
        return self._pickled(value, path)

    def _object(self, value: Any, path: Path) -> Node:
        before = set(self.tensors)
        state = self._node(state_of(value), path, objects=False)
        if isinstance(value, nn.Module):
            self.of_modules |= self.tensors.keys() - before
        if isinstance(value, torch.optim.Optimizer):
            return {"optimizer": [state, [str(weight.dtype) for weight in weights(value)]]}
        return {"object": state}

    def _within(self, value: Any, path: Path, work: Callable[[], Node]) -> Node:
        if id(value) in self._inside:
            raise _refusal(path, "contains itself")
        self._inside.add(id(value))
        try:
            return work()
        except RecursionError as error:
            raise _refusal(path[:3], "is nested too deeply") from error
        finally:
            self._inside.discard(id(value))

    def listed(self, values: Iterable[Any], path: Path, objects: bool) -> list[Node]:
        """Return the nodes of values in their order."""
        return [self._node(value, (*path, i), objects) for i, value in enumerate(values)]

    def pairs(self, values: Mapping[Any, Any], path: Path, objects: bool) -> list[list[Node]]:
        """Return the nodes of keys and values in their order."""
        return [
            [self._node(key, (*path, key), False), self._node(value, (*path, key), objects)]
            for key, value in values.items()
        ]

    def _tensor(self, value: Tensor, path: Path) -> Node:
        if isinstance(value, DTensor):
            if any(placement.is_partial() for placement in value.placements):
                value = value.redistribute(placements=[Replicate() if p.is_partial() else p for p in value.placements])
        elif type(value) not in (Tensor, nn.Parameter) or value.layout != torch.strided or value.is_quantized:
            return self._pickled(value, path)
        if value.is_meta:
            raise _refusal(path, "is a tensor on the meta device, which has no values")
        node: dict[str, Any] = {"tensor": self._named(value.detach(), path)}
        if isinstance(value, nn.Parameter):
            node["parameter"] = True
        if value.requires_grad:
            node["requires_grad"] = True
        return node

    def _payload(self, data: bytes, path: Path) -> Node:
        if len(data) <= _INLINE_BYTES:
            return base64.b64encode(data).decode()
        return {"tensor": self._named(torch.frombuffer(bytearray(data), dtype=torch.uint8), path)}

    def _named(self, value: Tensor, path: Path) -> str:
        """Keep a tensor under the name of its path, which a number follows where another has it."""
        name = plain = ".".join(map(str, path)).encode(errors="backslashreplace").decode()
        number = 1
        while name in self.tensors or name == _RESERVED:
            number += 1
            name = f"{plain}~{number}"
        self.tensors[name] = value
        return name

    def _pickled(self, value: Any, path: Path) -> Node:
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            again = torch.load(buffer, weights_only=True)
        except Exception as error:
            raise _refusal(path, f"is of the type {_type_name(value)}, which torch does not load safely") from error
        if type(again) is not type(value):
            raise _refusal(path, f"is of the type {_type_name(value)}, and would come back as {_type_name(again)}")
        return {"torch": self._payload(buffer.getvalue(), path)}


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _refusal(path: Path, problem: str) -> UserError:
    return UserError(
        f"the value {problem}, so it could not be restored",
        code="state-not-storable",
        field=".".join(map(str, path)),
        remedy="return plain values, tensors or arrays from state_dict(), or leave it out of the state; "
        "classes of your own can be allowed with torch.serialization.add_safe_globals",
    )


def _array_bytes(array: np.ndarray[Any, Any], path: Path) -> bytes:
    buffer = io.BytesIO()
    try:
        np.save(buffer, array, allow_pickle=False)
    except ValueError as error:
        raise _refusal(path, f"is an array of {array.dtype}, which holds Python objects") from error
    data = buffer.getvalue()
    if (again := _array(data)).dtype != array.dtype:
        raise _refusal(path, f"is an array of {array.dtype}, and would come back as {again.dtype}")
    return data


def _array(data: bytes) -> np.ndarray[Any, Any]:
    return cast(np.ndarray[Any, Any], np.load(io.BytesIO(data), allow_pickle=False))


def _sorted_set(values: Iterable[Any]) -> list[Any]:
    """Sort a set's elements, so that all ranks and every save describe equal sets alike."""
    return sorted(values, key=lambda value: (type(value).__name__, repr(value)))


def _factory_name(value: defaultdict[Any, Any], path: Path) -> str | None:
    factory = value.default_factory
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise _refusal(path, "is a defaultdict whose default_factory is no built-in type")
    return name


_Encode = Callable[[TreeEncoder, Any, Path, bool], Node]
_CONTAINERS: dict[type, _Encode] = {
    list: lambda e, v, p, o: e.listed(v, p, o),
    tuple: lambda e, v, p, o: {"tuple": e.listed(v, p, o)},
    # Nothing tells which element of a set an object was, and states are no keys: objects are refused there.
    set: lambda e, v, p, _: {"set": e.listed(_sorted_set(v), p, False)},
    frozenset: lambda e, v, p, _: {"frozenset": e.listed(_sorted_set(v), p, False)},
    dict: lambda e, v, p, o: {"dict": e.pairs(v, p, o)},
    OrderedDict: lambda e, v, p, o: {"ordered": e.pairs(v, p, o)},
    Counter: lambda e, v, p, o: {"counter": e.pairs(v, p, o)},
    defaultdict: lambda e, v, p, o: {"default": [_factory_name(v, p), e.pairs(v, p, o)]},
    deque: lambda e, v, p, o: {"deque": [v.maxlen, e.listed(v, p, o)]},
}


class TreeDecoder:
    """Build values from nodes and the tensors that they name.

    Raises:
        ValueError: A node has no known form. Errors of numpy and torch may be raised too.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def value(self, node: Node) -> Any:
        """Return the value of a node; the state of an object as `ObjectState`."""
        if isinstance(node, list):
            return [self.value(each) for each in node]
        if not isinstance(node, dict):
            return node
        tag = next(iter(node), "")
        if tag == "tensor":
            return self._tensor(node)
        if len(node) != 1 or tag not in _DECODE:
            raise ValueError(f"a node with the keys {list(node)[:3]} is not known")
        return _DECODE[tag](self, node[tag])

    def pairs(self, pairs: Iterable[tuple[Node, Node]]) -> list[tuple[Any, Any]]:
        """Return keys and values."""
        return [(self.value(key), self.value(value)) for key, value in pairs]

    def payload(self, node: Node) -> bytes:
        """Return the bytes of a payload."""
        if isinstance(node, str):
            return base64.b64decode(node)
        return self._tensors[node["tensor"]].cpu().numpy().tobytes()

    def _tensor(self, node: Node) -> Tensor:
        value = self._tensors[node["tensor"]]
        needs_gradient = bool(node.get("requires_grad", False))
        if node.get("parameter") and not isinstance(value, nn.Parameter):
            return nn.Parameter(value, requires_grad=needs_gradient)
        if value.requires_grad != needs_gradient and value.is_leaf:
            value.requires_grad_(needs_gradient)
        return value


_DECODE: dict[str, Callable[[TreeDecoder, Node], Any]] = {
    "int": lambda d, n: int(n, 16),
    "float": lambda d, n: float(n),
    "complex": lambda d, n: complex(*(d.value(part) for part in n)),
    "bytes": lambda d, n: d.payload(n),
    "bytearray": lambda d, n: bytearray(d.payload(n)),
    "array": lambda d, n: _array(d.payload(n)),
    "scalar": lambda d, n: _array(d.payload(n))[()],
    "torch": lambda d, n: torch.load(io.BytesIO(d.payload(n)), weights_only=True),
    "tuple": lambda d, n: tuple(d.value(n)),
    "set": lambda d, n: set(d.value(n)),
    "frozenset": lambda d, n: frozenset(d.value(n)),
    "dict": lambda d, n: dict(d.pairs(n)),
    "ordered": lambda d, n: OrderedDict(d.pairs(n)),
    "counter": lambda d, n: Counter(dict(d.pairs(n))),
    "default": lambda d, n: defaultdict(None if n[0] is None else _FACTORIES[n[0]], d.pairs(n[1])),
    "deque": lambda d, n: deque(d.value(n[1]), maxlen=n[0]),
    "object": lambda d, n: ObjectState(d.value(n)),
    "optimizer": lambda d, n: ObjectState(d.value(n[0]), n[1]),
}


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield all nodes without further nodes in them, with the keys and indices that lead there; objects add none."""
    inside = list[Any]()
    if isinstance(node, list):
        inside = [*enumerate(node)]
    elif isinstance(node, dict) and (tag := next(iter(node), "")) in _INNER:
        inside = [*_INNER[tag](node[tag])]
    for key, inner in inside:
        yield from leaves(inner, path if key is _SAME_PLACE else (*path, key))
    if not inside:
        yield path, node


_SAME_PLACE = object()


def _keyed(pairs: Iterable[tuple[Node, Node]]) -> Iterator[tuple[Any, Node]]:
    for key, value in pairs:
        yield json.dumps(key) if tensor_names(key) else TreeDecoder({}).value(key), value


_INNER: dict[str, Callable[[Node], Iterable[tuple[Any, Node]]]] = {
    "dict": _keyed,
    "ordered": _keyed,
    "counter": _keyed,
    "default": lambda n: _keyed(n[1]),
    "tuple": enumerate,
    "set": enumerate,
    "frozenset": enumerate,
    "deque": lambda n: enumerate(n[1]),
    "object": lambda n: [(_SAME_PLACE, n)],
    "optimizer": lambda n: [(_SAME_PLACE, n[0])],
}


def tensor_of(node: Node) -> str | None:
    """Return the name of the tensor that a node is; None for all other nodes."""
    return node["tensor"] if isinstance(node, dict) and isinstance(node.get("tensor"), str) else None


def tensor_names(node: Node) -> set[str]:
    """Return the names of all tensors that a node needs, those that hold the bytes of other values too."""
    if isinstance(node, list):
        return set().union(*map(tensor_names, node))
    if not isinstance(node, dict):
        return set()
    name = tensor_of(node)
    return set().union(*map(tensor_names, node.values())) if name is None else {name}
