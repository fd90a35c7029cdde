"""Give context variables a value for a block, and give back at its end what was set for the whole process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_giving_back: ContextVar[ExitStack | None] = ContextVar("giving_back", default=None)


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a variable another value until the block ends."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def giving_back() -> Iterator[ExitStack]:
    """Yield a stack that is closed at the block's end, and that `at_end` adds to wherever it is called within the block."""
    with ExitStack() as stack, setting(_giving_back, stack):
        yield stack


def at_end(give_back: Callable[..., object], *values: Any) -> None:
    """Give back a setting at the end of the block that changes it; outside of one it stays changed, as in a command's process."""
    if (stack := _giving_back.get()) is not None:
        stack.callback(give_back, *values)
