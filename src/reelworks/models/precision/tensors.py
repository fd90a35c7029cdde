"""The tensors of a model's inputs: a dataclass of tensors, tuples of them, groups that are such dataclasses, or None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor


class TensorFields(Protocol):
    """Any dataclass whose fields are tensors, tuples of them, groups of them, or None."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


FieldsT = TypeVar("FieldsT", bound=TensorFields)


def mapped(inputs: FieldsT, change: Callable[[str, Tensor], Tensor], group: str = "") -> FieldsT:
    """Return inputs with every tensor changed, given its name; in a group this is that of the group and its own."""

    def changed(name: str, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            return tuple(change(name, part) for part in value)
        return change(name, value) if isinstance(value, Tensor) else mapped(value, change, f"{name}_")

    return replace(inputs, **{f.name: changed(group + f.name, getattr(inputs, f.name)) for f in fields(inputs)})


def named(inputs: TensorFields) -> list[tuple[str, Tensor]]:
    """Return every tensor with its name, in the order of the fields; those of a tuple have one name."""
    found: list[tuple[str, Tensor]] = []

    def note(name: str, value: Tensor) -> Tensor:
        found.append((name, value))
        return value

    mapped(inputs, note)
    return found
