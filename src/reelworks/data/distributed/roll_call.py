"""Let all ranks find each other before they form a process group, and compare what they start with.

Rank 0 answers the others through a key-value store, which it hosts itself, or which torchrun's agent hosts. A store may
outlive its ranks: torchrun starts others on it after a loss. So a rank says hello with a random word, and rank 0 answers
with the token of this start, below which everything else is stored.

    others:  hello(word) → wait for token(word) → here(facts) → wait for the verdict
    rank 0:  answer hellos, collect facts, until all are here, or one differs, or time is over → verdict
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from reelworks.core import launcher, system
from reelworks.core.errors import UserError

_POLL_SECONDS = 0.05
_CONNECT_SECONDS = 0.5  # between tries to connect
# Time for the others to read a verdict that ends rank 0, and with it perhaps the store.
_READING_SECONDS = 1.0
# The others wait for longer than rank 0, so that it is rank 0 who says which ranks are missing.
_LONGER_SECONDS = 10.0

Facts = Mapping[str, str]


def hold(rank: int, size: int, facts: Facts, join_seconds: float) -> PrefixStore:
    """Wait for all ranks, and return a store that is this start's alone. Collective.

    Args:
        rank, size: This process's rank, and the number of ranks that it was told.
        facts: Values that must be equal on all ranks, by what they are, such as `{"version of torch": "2.13"}`.
        join_seconds: Time for all ranks to arrive.

    Raises:
        UserError: On every rank, if a rank is missing or has other facts; the message names it.
    """
    store = _connect(rank, join_seconds)
    mine = {"number of ranks": str(size), **facts}
    if rank == 0:
        token = uuid.uuid4().hex
        verdict = _collect(store, token, size, mine, join_seconds)
        store.set(f"{token}/verdict", json.dumps(verdict))
        if verdict is not None:
            time.sleep(_READING_SECONDS)
    else:
        token, verdict = _attend(store, rank, mine, join_seconds)
    if verdict is not None:
        raise _refusal(*verdict, join_seconds)
    return PrefixStore(token, store)


def another_connection(store: PrefixStore) -> PrefixStore:
    """Return the same store through a connection of its own, for a thread: a call that waits blocks its connection."""
    cloned: PrefixStore = store.clone()  # type: ignore[attr-defined]
    return cloned


def _connect(rank: int, join_seconds: float) -> TCPStore:
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), launcher.number("MASTER_PORT")
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    # torch for Windows is built without libuv.
    how = {"wait_for_workers": False, "multi_tenant": True, "use_libuv": not system.WINDOWS}
    try:
        if not hosts:
            _await(address, port, join_seconds)
        return TCPStore(address, port, None, hosts, timedelta(seconds=join_seconds), **how)
    except (dist.DistNetworkError, dist.DistStoreError, OSError) as error:
        raise UserError(
            f"rank {rank} on {socket.gethostname()} cannot "
            + ("listen there" if hosts else f"reach rank 0 there within {join_seconds:g} s"),
            code="rank-0-unreachable",
            field="MASTER_ADDR:MASTER_PORT",
            value=f"{address}:{port}",
            remedy="choose another MASTER_PORT"
            if hosts
            else "start rank 0 too, and give all ranks the address of its machine and a port that is open to them",
        ) from error


def _await(address: str, port: int, join_seconds: float) -> None:
    """Wait until somebody listens there, for which a store would wait twice as long; raises `OSError`."""
    deadline = time.monotonic() + join_seconds
    while True:
        try:
            return socket.create_connection((address, port), join_seconds).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_CONNECT_SECONDS)


def _collect(store: TCPStore, token: str, size: int, mine: Facts, join_seconds: float) -> tuple[str, str] | None:
    """Answer the other ranks until all are here; returns what is wrong as (code, problem)."""
    here: set[int] = {0}
    hellos, arrivals = _Entries(store, "hello"), _Entries(store, f"{token}/here")
    deadline = time.monotonic() + join_seconds
    while len(here) < size:
        if time.monotonic() > deadline:
            missing = ", ".join(str(rank) for rank in range(size) if rank not in here)
            return "ranks-missing", f"rank {missing} of {size} ranks did not arrive within {join_seconds:g} s"
        for word in hellos.new():
            store.set(f"token/{word}", token)
        for text in arrivals.new():
            guest = json.loads(text)
            if difference := _difference(guest, mine):
                return "ranks-differ", difference
            here.add(int(guest["rank"]))
        time.sleep(_POLL_SECONDS)
    return None


class _Entries:
    """A list in a store that several ranks append to; one that dies within `append` leaves a gap."""

    def __init__(self, store: TCPStore, name: str) -> None:
        self._store, self._name = store, name
        self._read: set[int] = set()

    def append(self, text: str) -> None:
        self._store.set(f"{self._name}/{self._store.add(f'{self._name}/count', 1)}", text)

    def new(self) -> Iterator[str]:
        """Yield the entries that were not yielded yet."""
        for i in range(1, self._store.add(f"{self._name}/count", 0) + 1):
            if i not in self._read and self._store.check([f"{self._name}/{i}"]):
                self._read.add(i)
                yield self._store.get(f"{self._name}/{i}").decode()


def _attend(store: TCPStore, rank: int, mine: Facts, join_seconds: float) -> tuple[str, tuple[str, str] | None]:
    word = uuid.uuid4().hex
    _Entries(store, "hello").append(word)
    host = socket.gethostname()
    try:
        store.wait([f"token/{word}"], timedelta(seconds=join_seconds + _LONGER_SECONDS))
        token = store.get(f"token/{word}").decode()
        _Entries(store, f"{token}/here").append(json.dumps({"rank": rank, "host": host, "facts": dict(mine)}))
        store.wait([f"{token}/verdict"], timedelta(seconds=join_seconds + _LONGER_SECONDS))
        verdict = json.loads(store.get(f"{token}/verdict"))
    except dist.DistError:
        return "", ("ranks-missing", f"rank 0 did not answer rank {rank} on {host}; it has failed, or has not started")
    return token, None if verdict is None else (verdict[0], verdict[1])


def _difference(guest: Mapping[str, object], mine: Facts) -> str:
    """Name the first fact in which a rank differs from rank 0; empty if none."""
    theirs = guest["facts"]
    assert isinstance(theirs, dict)
    for what in (*mine, *(key for key in theirs if key not in mine)):
        if theirs.get(what) != mine.get(what):
            return (
                f"rank {guest['rank']} on {guest['host']} has another {what} than rank 0: "
                f"{theirs.get(what)} instead of {mine.get(what)}"
            )
    return ""


def _refusal(code: str, problem: str, join_seconds: float) -> UserError:
    if code == "ranks-differ":
        return UserError(
            problem,
            code="ranks-differ",
            field="parallel",
            remedy="start all with the same number of ranks, recipe, overrides, and versions of reelworks and torch",
        )
    return UserError(
        problem,
        code="ranks-missing",
        field="parallel.join_seconds",
        value=join_seconds,
        remedy="look at the missing ranks' own output; if they only start slowly, raise it",
    )
