"""Ranks find each other on a store that may be used before, and tell in a sentence why they do not fit together."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import children
import pytest
import torch
import torch.distributed as dist
from refused import refused
from torch.distributed import TCPStore
from torch.testing._internal.distributed.fake_pg import FakeStore

from reelworks.core import system
from reelworks.core.errors import UserError
from reelworks.data.distributed import collectives, mesh, roll_call

Outcome = bytes | UserError


@pytest.mark.parametrize(("others", "ranks", "offload"), [(2, 1, False), (2, 2, False), (1, 2, False), (1, 1, True)])
def test_a_process_group_of_the_caller_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, others: int, ranks: int, offload: bool
) -> None:
    """As that of Accelerate or Ray, which is there before a training begins."""
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=others)
    try:
        with refused(
            "process-group-exists", "torch.distributed", says=f"group of {others} already.*destroy_process_group"
        ):
            mesh.join(offload=offload).__enter__()
    finally:
        dist.destroy_process_group()


def test_a_process_alone_needs_no_group_and_may_have_one() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        with mesh.join() as world:
            assert (world.size, world.watch) == (1, None)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Outcome]]:
    """Let ranks, as threads, hold a roll call; each returns a value that rank 0 stored, or its error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setattr(roll_call, "_READING_SECONDS", 0.2)
    monkeypatch.setattr(roll_call, "_LONGER_SECONDS", 0.5)
    # As torchrun's agent, whose store outlives its ranks.
    server = TCPStore(
        "127.0.0.1", port, None, True, timedelta(seconds=5), wait_for_workers=False, use_libuv=not system.WINDOWS
    )
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")

    def one(rank: int, size: int, facts: dict[str, str], seconds: float, value: str) -> Outcome:
        try:
            store = roll_call.hold(rank, size, facts, seconds)
        except UserError as error:
            return error
        if rank == 0:
            store.set("value", value)
        return bytes(store.get("value"))

    def all_of(*ranks: tuple[int, int, dict[str, str]], seconds: float = 5.0, value: str = "") -> list[Outcome]:
        assert server is not None
        with ThreadPoolExecutor(len(ranks)) as pool:
            return list(pool.map(lambda rank: one(*rank, seconds, value), ranks))

    return all_of


def test_a_later_start_on_the_same_store_is_its_own(join: Callable[..., list[Outcome]]) -> None:
    """With other facts, fewer ranks, and after one that was never completed."""
    assert join(*((rank, 3, {"recipe": "a"}) for rank in range(3)), value="first") == [b"first"] * 3
    lonely = join((1, 3, {"recipe": "a"}), seconds=0.1)  # its hello stays
    assert "rank 0 did not answer rank 1" in str(lonely[0])
    assert join(*((rank, 2, {"recipe": "b"}) for rank in range(2)), value="second") == [b"second"] * 2


def test_another_fact_is_told_to_all_with_both_values(join: Callable[..., list[Outcome]]) -> None:
    outcomes = join((0, 3, {"recipe": "a"}), (1, 3, {"recipe": "a"}), (2, 3, {"recipe": "b"}))
    for error in outcomes:
        assert isinstance(error, UserError)
        assert error.code == "ranks-differ"
        assert "rank 2 on " in error.problem
        assert "another recipe than rank 0: b instead of a" in error.problem


@pytest.mark.parametrize(("ours", "theirs"), [({}, {"recipe": "a"}), ({"recipe": "a"}, {})])
def test_a_fact_that_one_rank_lacks_is_told(join: Callable[..., list[Outcome]], ours: dict, theirs: dict) -> None:
    """As a rank with another version of the program may know of other facts."""
    assert all("another recipe than rank 0" in str(error) for error in join((0, 2, ours), (1, 2, theirs)))


def test_another_number_of_ranks_is_told(join: Callable[..., list[Outcome]]) -> None:
    outcomes = join((0, 2, {}), (5, 8, {}))
    assert all("has another number of ranks than rank 0: 8 instead of 2" in str(error) for error in outcomes)


def test_missing_ranks_are_named(join: Callable[..., list[Outcome]]) -> None:
    outcomes = join((0, 4, {}), (2, 4, {}), seconds=0.5)
    for error in outcomes:
        assert isinstance(error, UserError)
        assert error.problem == "rank 1, 3 of 4 ranks did not arrive within 0.5 s"
        assert (error.code, error.field) == ("ranks-missing", "parallel.join_seconds")


def test_a_rank_0_that_is_not_there_is_told_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "9")
    began = time.monotonic()
    with pytest.raises(UserError, match=r"rank 1 on .* cannot reach rank 0 there within 0.8 s") as caught:
        roll_call.hold(1, 2, {}, 0.8)
    assert 0.8 <= time.monotonic() - began < 1.5
    assert (caught.value.code, caught.value.value) == ("rank-0-unreachable", "127.0.0.1:9")


def test_a_number_of_ranks_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a scheduler sets one variable for its own use."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with refused("launcher-variable-missing", "WORLD_SIZE", says="RANK, MASTER_ADDR, MASTER_PORT"), mesh.join():
        pass


def test_a_rank_of_no_number_of_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would train alone, and say nothing, as ranks but the first do."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with refused("launcher-variable-invalid", "RANK", says="not below WORLD_SIZE, 1"), mesh.join():
        pass


@pytest.mark.parametrize(("told", "asked"), [({"LOCAL_WORLD_SIZE": "4"}, 4), ({"LOCAL_RANK": "2"}, 3)])
def test_more_ranks_than_gpus_on_a_machine_are_refused_by_all_of_them(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str], asked: int
) -> None:
    """Also by those that have one, such as rank 0, which speaks for all."""
    monkeypatch.delenv("REELWORKS_DEVICE", raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        refused("ranks-without-gpu", "LOCAL_WORLD_SIZE", says=f"than GPUs that each sees, 2.*--gpus-per-node={asked} "),
        mesh.join(),
    ):
        pass


def _refuse() -> None:
    raise UserError("is full", code="disk-full", remedy="free some")


def _told(rank: int, store: Path) -> None:
    limit = timedelta(seconds=20)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2, timeout=limit)
    with collectives.patience(), refused("disk-full"):
        collectives.on_first(_refuse)


def test_what_the_first_rank_cannot_do_for_all_is_told_by_each(tmp_path: Path) -> None:
    assert children.ended([children.process(_told, rank, tmp_path / "store") for rank in (0, 1)]) == [0, 0]
