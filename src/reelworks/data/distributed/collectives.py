"""Run work on ranks so that a failure on one raises the same error on all.

That error is the first `CommonError` that a rank raised, such as a `UserError`, or else `RanksFailed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import torch.distributed as dist

from reelworks.core.errors import CommonError

T = TypeVar("T")
R = TypeVar("R")
_patient: dist.ProcessGroup | None = None


class RankFailure(NamedTuple):
    """An error of one rank as plain values, since not every exception can be pickled; `error` if it can."""

    rank: int
    text: str
    errnos: frozenset[int]
    error: CommonError | None = None


class _Failures(tuple[RankFailure, ...]):
    """Failures of one rank or more, in place of a result."""


class RanksFailed(RuntimeError):  # noqa: N818
    """Work failed on one rank or more. Raised equally on all ranks."""

    def __init__(self, failures: Sequence[RankFailure]) -> None:
        self.errnos = frozenset().union(*(failure.errnos for failure in failures))
        super().__init__("; ".join(f"rank {failure.rank}: {failure.text}" for failure in failures))


def _raise(failures: _Failures, cause: Exception | None) -> NoReturn:
    for failure in failures:
        if failure.error is not None:
            raise failure.error from (None if failure.error is cause else cause)
    raise RanksFailed(failures) from cause


def is_distributed() -> bool:
    """Whether a default process group is initialized."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return the rank in the default process group; 0 without one."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Return the size of the default process group; 1 without one."""
    return dist.get_world_size() if is_distributed() else 1


@contextmanager
def patience() -> Iterator[None]:
    """Let `on_first` last for days while this is open, instead of the default group's timeout. Collective."""
    global _patient
    _patient = dist.new_group(backend="gloo", timeout=timedelta(days=7))
    try:
        yield
    finally:
        _patient = None


def gather(value: Any) -> list[Any]:
    """Return every rank's picklable value, by rank, on every rank. Collective."""
    if not is_distributed():
        return [value]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def on_all(work: Callable[[], T]) -> list[T]:
    """Call `work` on each rank and return all results, ordered by rank, on every rank. Collective.

    Raises:
        CommonError: On every rank, if any rank's work raised one.
        RanksFailed: On every rank, if any rank's work raised something else.
    """
    mine, cause = _attempt(work)
    outcomes = gather(mine)
    if failures := _failures(outcomes):
        _raise(failures, cause)
    return cast(list[T], outcomes)


def each(work: Callable[[], T]) -> T:
    """Call `work` on each rank and return its own result, which need not be picklable; otherwise as `on_all`."""
    results: list[T] = []
    on_all(lambda: results.append(work()))
    return results[0]


def on_first(work: Callable[[], T]) -> T:
    """Call `work` on rank 0 alone and return its result on every rank. Collective; raises as `on_all` does.

    While `patience` is open, it may take as long as a disk or a network does.
    """

    def alone() -> T | None:
        try:
            return work() if rank() == 0 else None
        finally:
            if _patient is not None:
                dist.barrier(_patient)

    return cast(T, on_all(alone)[0])


def through_first(own: Callable[[], T], whole: Callable[[list[T]], list[R]]) -> R:
    """Call `own` on each rank, `whole` on rank 0 with all results, and return this rank's share of what that returned.

    Collective; raises as `on_all` does if `own` raised on any rank or `whole` on rank 0.
    """
    mine, cause = _attempt(own)
    outcomes: list[Any] | None = [mine]
    if is_distributed():
        outcomes = [None] * world_size() if rank() == 0 else None
        dist.gather_object(mine, outcomes)
    shares: list[R | _Failures] = []
    if outcomes is not None:
        failures = _failures(outcomes)
        outcome: list[R] | _Failures = failures
        if not failures:
            outcome, cause = _attempt(lambda: whole(cast(list[T], outcomes)))
        shares = [outcome] * world_size() if isinstance(outcome, _Failures) else [*outcome]
    received: list[Any] = shares[:1]
    if is_distributed():
        received = [None]
        dist.scatter_object_list(received, shares if rank() == 0 else None)
    share: R | _Failures = received[0]
    if isinstance(share, _Failures):
        _raise(share, cause)
    return share


def _failures(outcomes: list[Any]) -> _Failures:
    failures = [f for outcome in outcomes if isinstance(outcome, _Failures) for f in outcome]
    return _Failures(sorted(failures, key=lambda f: (f.rank, f.text)))


def _attempt(work: Callable[[], T]) -> tuple[T | _Failures, Exception | None]:
    """Return the result of work, or its failure and the error itself."""
    try:
        return work(), None
    except Exception as error:
        return _Failures([_describe(rank(), error)]), error


def _describe(failed_rank: int, error: BaseException) -> RankFailure:
    errnos, cause = set(), cast(BaseException | None, error)
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            errnos.add(cause.errno)
        cause = cause.__cause__ or cause.__context__
    common = error if isinstance(error, CommonError) else None
    return RankFailure(failed_rank, f"{type(error).__name__}: {error}", frozenset(errnos), common)
