"""Engines: where a scan, measures and an encoding do their work, on this machine or on workers elsewhere, by name.

The engine "local" is this machine. All others are brought by annexes (`Annex.engines`). An engine is a function that connects
to its workers for a block, in which it may be called again:

    @contextmanager
    def connect(*, for_actors: bool = False) -> Iterator[ActorExecutor]: ...

`for_actors` tells that the block will run actors, which an engine may refuse before anything is done. Functions, arguments and
results can be pickled; workers have the same version of this package, and see the same files at the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

from reelworks.core import annexes, machine
from reelworks.core.errors import UserError
from reelworks.core.worker_pool import WorkerPool

T = TypeVar("T")
R = TypeVar("R")
J = TypeVar("J")
Actor = Callable[[str], str]

LOCAL = "local"


class CallPool(Protocol):
    """Threads or processes that calls are made in, by several threads of this process; see `ThreadCalls` and `WorkerPool`."""

    def call(self, function: Callable[[T], R], value: T, timeout_seconds: float | None, /) -> R:
        """Return `function(value)`; raises `WorkerDied` if its process ends, and `WorkerHung` if it takes too long."""

    def close(self) -> None:
        """End the calls that are running."""


class Executor(Protocol):
    """Workers that calls are made in."""

    @property
    def calls_at_once(self) -> int:
        """Number of calls that are to wait or run at once."""

    def pool(self) -> CallPool:
        """Return a new pool, which whoever asked for it closes."""


class ActorExecutor(Executor, Protocol):
    """Workers that an engine has connected to, which also keep actors."""

    @property
    def uses_gpus(self) -> bool:
        """Whether each actor has a GPU."""

    def run_actors(self, actor: Callable[[J], Actor], job: J, parts: Sequence[str]) -> Iterator[str]:
        """Yield the result of each part, in any order.

        Each worker makes one actor, as `actor(job)`, and calls it with one part after the other. An actor that dies is made
        anew, and gets the same part again.
        """


@dataclass(frozen=True)
class LocalExecutor:
    """Processes of this machine."""

    calls_at_once: int

    def pool(self) -> CallPool:
        """Return a pool of spawned processes."""
        return WorkerPool()


def connect(engine: str, workers: int = 0) -> AbstractContextManager[Executor]:
    """Connect to an engine's workers for a block; those of this machine are `workers` processes, 0 for one on each core.

    Raises:
        UserError: There is no such engine; or, as the block begins, it cannot be reached.
    """
    return nullcontext(LocalExecutor(workers or machine.cores())) if engine == LOCAL else connect_elsewhere(engine)


def connect_elsewhere(engine: str, *, for_actors: bool = False) -> AbstractContextManager[ActorExecutor]:
    """Connect to the workers of an engine that an annex brings; raises as `connect` does."""
    places = annexes.engines()
    if engine not in places:
        raise UserError(
            "there is no such engine",
            code="engine-unknown",
            field="--engine",
            value=engine,
            remedy=f"give one of {', '.join((LOCAL, *sorted(places)))}, or install the package that brings it",
        )
    return annexes.use(*places[engine], lambda connect: connect(for_actors=for_actors))
