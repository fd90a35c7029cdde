"""Death at every storage call: run a piece of work in forks, each of which is killed at another call.

What is asked of `core.storage` is recorded once; then each call is a point at which a process gets SIGKILL:
before the call, and for a write also when half of its bytes are written. The forking process must have run no
threads; what it has imported is not imported again, so that a point costs milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import killing
import pytest

from reelworks.core import storage, system
from reelworks.core.storage import Guard

# The rank, and what the work calls to tell that something is done for good.
Work = Callable[[int, Callable[[str], None]], None]

_POLL_SECONDS = 0.002


@dataclass
class Call:
    """A storage call that was seen: its kind, its path, and the bytes of a write."""

    kind: str
    path: str
    bytes: int = 0


@dataclass(frozen=True)
class Point:
    """Where a rank is killed.

    Attributes:
        rank: Which one.
        number: Storage calls that it has made by then.
        call: The call that it does not survive.
        half: Half of what the call writes is written first.
    """

    rank: int
    number: int
    call: Call
    half: bool = False

    def __str__(self) -> str:
        when = "in" if self.half else "before"
        return f"rank {self.rank}, {when} call {self.number}: {self.call.kind} {self.call.path}"


@dataclass
class Outcome:
    """How the ranks ended.

    Attributes:
        exits: Exit code by rank, negative for a signal; None for a rank that hung and was ended.
        told: What was told, in order.
        errors: What ranks raised.
        calls: By rank, if they were to be recorded.
    """

    exits: list[int | None]
    told: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    calls: dict[int, list[Call]] = field(default_factory=dict)


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Record the storage calls of a block."""
    calls: list[Call] = []

    def measure() -> None:
        # A write's size shows in the file once the next call comes.
        if calls and calls[-1].kind == "write":
            calls[-1].bytes += Path(calls[-1].path).stat().st_size

    def guard(kind: str, path: Path) -> None:
        measure()
        calls.append(Call(kind, str(path), -path.stat().st_size if kind == "write" else 0))

    with storage.guarded(guard):
        yield calls
    measure()


def points(rank: int, calls: list[Call]) -> list[Point]:
    """All points of a rank that made these calls."""
    found = []
    for number, call in enumerate(calls):
        found.append(Point(rank, number, call))
        if call.bytes > 1:
            found.append(Point(rank, number, call, half=True))
    return found


def deadly(point: Point) -> Guard:
    """Make the guard that kills this process at a point."""
    made = 0

    def guard(kind: str, path: Path) -> int | None:
        nonlocal made
        number, made = made, made + 1
        if number == point.number and point.half:
            return point.call.bytes // 2
        if number >= point.number:
            killing.kill_self()
        return None

    return guard


def run(
    work: Work,
    *,
    ranks: int = 1,
    die_at: Point | None = None,
    record: bool = False,
    limit_seconds: float = 60,
) -> Outcome:
    """Run the work in one fork for each rank, which share nothing but what `work` itself sets up."""
    if system.WINDOWS:
        pytest.skip("the work is done in forks, which Windows has not")
    reader, writer = os.pipe()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _live(work, rank, writer, die_at, record)
        pids.append(pid)
    os.close(writer)
    outcome = Outcome(_wait(pids, limit_seconds))
    with os.fdopen(reader, encoding="utf-8") as lines:
        for line in lines:
            name, value = json.loads(line)
            if name == "told":
                outcome.told.append(value)
            elif name == "error":
                outcome.errors.append(value)
            else:
                outcome.calls[int(name)] = [Call(**call) for call in value]
    return outcome


def _live(work: Work, rank: int, writer: int, die_at: Point | None, record: bool) -> None:
    """What a fork does; never returns."""
    # Not through Python's streams: what the parent had buffered there would be written twice.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)

    def send(name: str, value: object) -> None:
        os.write(writer, (json.dumps([name, value]) + "\n").encode())

    def told(what: str) -> None:
        send("told", what)

    code = 1
    try:
        if record:
            with recorded() as calls:
                work(rank, told)
            send(str(rank), [asdict(call) for call in calls])
        elif die_at is not None and die_at.rank == rank:
            with storage.guarded(deadly(die_at)):
                work(rank, told)
        else:
            work(rank, told)
        code = 0
    except BaseException as error:
        send("error", f"rank {rank}: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _wait(pids: list[int], limit_seconds: float) -> list[int | None]:
    """Exit codes of children; what still runs after the limit is ended and counts as hung."""
    exits: dict[int, int | None] = {}
    until = time.monotonic() + limit_seconds
    while len(exits) < len(pids):
        for pid in pids:
            if pid not in exits and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                exits[pid] = os.waitstatus_to_exitcode(ended[1])
            elif pid not in exits and time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                exits[pid] = None
        time.sleep(_POLL_SECONDS)
    return [exits[pid] for pid in pids]
