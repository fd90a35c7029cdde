"""A store returns what was put, after any kill and damage, or says that it cannot."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq
from refused import refused
from safetensors.torch import save
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.run import lock
from reelworks.models.api import TextEmbedding
from reelworks.training.encoding import store as store_module
from reelworks.training.encoding import values
from reelworks.training.encoding.request_key import Wanted
from reelworks.training.encoding.store import DamagedEntry, EncodedStore


def wanted(number: int) -> Wanted:
    return Wanted(f"{number:032x}", "latent", "autoencoder", "content", f"clip {number}", "{}")


def filled(path: Path, commits: int = 2) -> EncodedStore:
    store = EncodedStore.open(path)
    for commit in range(commits):
        for number in (2 * commit, 2 * commit + 1):
            store.put(wanted(number), torch.full((2, 3), float(number)))
        store.commit()
    return store


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_what_was_put_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    store, value = EncodedStore.open(tmp_path), torch.arange(12).reshape(3, 4).to(dtype)
    store.put(wanted(1), value)
    assert torch.equal(store.read(wanted(1).key), value)  # before the commit too
    store.commit()
    again = EncodedStore.open(tmp_path).read(wanted(1).key)
    assert again.dtype == dtype
    assert torch.equal(again, value)


@pytest.mark.parametrize("part", ["tokens", "pooled"])
def test_an_embedding_that_is_no_number_is_not_stored_as_no_latent_is(tmp_path: Path, part: str) -> None:
    store, text = EncodedStore.open(tmp_path), replace(wanted(1), kind="text")
    good = TextEmbedding(torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 3))
    for value in (values.pack(good._replace(**{part: getattr(good, part) * torch.inf})), torch.tensor([torch.nan])):
        each = text if value.dtype == torch.uint8 else wanted(2)
        store.put(each, value)
        assert each.key not in store
        assert "holds infinities or NaN" in store.refused[each.key]
    store.put(text, values.pack(good))


def test_what_waits_for_half_a_minute_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the first tensor that no commit has; with the next one that is put."""
    mine, theirs = EncodedStore.open(tmp_path), EncodedStore.open(tmp_path)
    seconds, there = iter((100.0, 100.0, 129.0, 131.0, 500.0, 500.0)), []
    monkeypatch.setattr(store_module.time, "monotonic", lambda: next(seconds))
    for number in range(4):
        mine.put(wanted(number), torch.ones(1))
        theirs.refresh()
        there.append([each for each in range(4) if wanted(each).key in theirs])
    assert there == [[], [], [0, 1, 2], [0, 1, 2]]


def test_another_process_learns_of_a_commit(tmp_path: Path) -> None:
    mine, theirs = EncodedStore.open(tmp_path), EncodedStore.open(tmp_path)
    theirs.put(wanted(5), torch.ones(1))
    theirs.commit()
    assert wanted(5).key not in mine
    mine.refresh()
    assert torch.equal(mine.read(wanted(5).key), torch.ones(1))


def test_a_kill_at_any_write_loses_only_what_was_in_flight(tmp_path: Path) -> None:
    """Whatever operation is the last one, the first commit stays, and the second is there in full or not at all."""
    for last in range(40):
        path, calls = tmp_path / str(last), [0]

        class Killed(BaseException):
            pass

        def guard(call: str, file: Path, calls: list[int] = calls, last: int = last) -> None:
            calls[0] += 1
            if calls[0] > last:
                raise Killed

        store = filled(path, commits=1)
        for number in (2, 3):
            store.put(wanted(number), torch.full((2, 3), float(number)))
        try:
            with storage.guarded(guard):
                store.commit()
            survived = True
        except Killed:
            survived = False
        after = EncodedStore.open(path)
        there = [n for n in range(4) if wanted(n).key in after]
        assert there in ([0, 1], [0, 1, 2, 3])
        assert all(torch.equal(after.read(wanted(n).key), torch.full((2, 3), float(n))) for n in there)
        assert not [row for row, problem in after.verify() if problem]
        if survived:
            assert there == [0, 1, 2, 3]
            return
    raise AssertionError("a commit takes fewer operations")


def test_a_store_that_is_opened_during_a_commit_lets_it_end(tmp_path: Path) -> None:
    """Whoever opens it removes what a kill left, an hour after the last write; not the file that another is writing."""
    store, opened = filled(tmp_path), []
    stray = tmp_path / "shards" / ".left-by-a-kill.tmp"
    stray.touch()
    os.utime(stray, (0, 0))
    store.put(wanted(9), torch.full((2, 3), 9.0))

    def open_beside(call: str, path: Path) -> None:
        if call == "rename" and "shards" in path.parts and not opened:
            opened.append(EncodedStore.open(tmp_path))

    with storage.guarded(open_beside):
        store.commit()
    assert len(opened) == 1
    assert not stray.exists()
    assert torch.equal(EncodedStore.open(tmp_path).read(wanted(9).key), torch.full((2, 3), 9.0))


def test_a_shard_without_an_index_is_indexed_again(tmp_path: Path) -> None:
    filled(tmp_path)
    for index in (tmp_path / "index").iterdir():
        index.unlink()
    after = EncodedStore.open(tmp_path)
    assert all(torch.equal(after.read(wanted(n).key), torch.full((2, 3), float(n))) for n in range(4))


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    shard = sorted((tmp_path / "shards").iterdir())[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    store = EncodedStore.open(tmp_path)
    broken = [n for n in range(4) if _is_damaged(store, n)]
    assert broken == [1]
    assert [row["label"] for row, problem in store.verify() if problem] == ["clip 1"]
    store.forget(wanted(1).key)
    assert wanted(1).key not in store
    store.put(wanted(1), torch.ones(1))
    store.commit()
    assert torch.equal(EncodedStore.open(tmp_path).read(wanted(1).key), torch.ones(1))


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_the_command_that_verifies_fails_where_a_value_is_damaged(tmp_path: Path, form: tuple[str, ...]) -> None:
    filled(tmp_path)
    verify = ["encode", "verify", str(tmp_path), *form]
    assert CliRunner().invoke(app, verify).exit_code == 0
    shard = sorted((tmp_path / "shards").iterdir())[0]
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    told = CliRunner().invoke(app, verify)
    assert (told.exit_code, "clip 1" in told.stdout, "clip 2" in told.stdout) == (1, True, False)


@pytest.mark.parametrize("way", ["shard gone", "shard cut", "a flipped byte"])
def test_what_is_lost_is_missing_until_it_is_stored_again_and_then_nothing_is_damaged(tmp_path: Path, way: str) -> None:
    """To who opens the store, and to who has opened it before another process stored it; a flipped byte is found by reading."""
    before = EncodedStore.open(tmp_path)
    filled(tmp_path)
    first, keys = sorted((tmp_path / "shards").iterdir())[0], [wanted(n).key for n in range(4)]
    data = first.read_bytes()
    first.write_bytes(data[:-1] if way == "shard cut" else data[:-1] + b"!")
    if way == "shard gone":
        first.unlink()
    verify = ["encode", "verify", str(tmp_path)]
    lost = {1} if way != "shard gone" else {0, 1}
    assert (told := CliRunner().invoke(app, verify)).exit_code == 1
    assert f"{len(lost)} damaged" in told.stdout
    if way == "a flipped byte":
        assert not EncodedStore.open(tmp_path).missing(keys)
        assert CliRunner().invoke(app, [*verify, "--delete"]).exit_code == 1
    before.refresh()
    for store in (EncodedStore.open(tmp_path), before):
        assert store.missing(keys) == {wanted(n).key for n in lost}
    for number in lost:
        store.put(wanted(number), torch.full((2, 3), float(number)))
    store.commit()
    assert CliRunner().invoke(app, verify).exit_code == 0
    assert sorted(EncodedStore.open(tmp_path).table().column("key").to_pylist()) == keys
    store.remove(set())  # frees what was replaced
    assert all(
        torch.equal(EncodedStore.open(tmp_path).read(wanted(n).key), torch.full((2, 3), float(n))) for n in range(4)
    )
    assert len(list((tmp_path / "index").iterdir())) == (3 if way != "shard gone" else 2)


@pytest.mark.parametrize(
    "what", ["cut", "empty", "a flipped bit", "other columns", "a shard cut", "a foreign shard", "wild bytes"]
)
def test_a_damaged_store_names_the_file_to_delete(tmp_path: Path, what: str) -> None:
    filled(tmp_path)
    index = sorted((tmp_path / "index").iterdir())[0]
    shard = tmp_path / "shards" / f"{index.stem}.safetensors"
    data, damaged = index.read_bytes(), index
    if what == "other columns":
        pq.write_table(pa.table({"a": [1]}), index)
    elif what in ("a shard cut", "a foreign shard", "wild bytes"):
        index.unlink()
        damaged = shard
        foreign = {"a foreign shard": save({"a": torch.ones(1)}), "wild bytes": b"\xff" * 100}
        shard.write_bytes(foreign.get(what, shard.read_bytes()[:50]))
    else:
        flipped = bytes([*data[:40], data[40] ^ 1, *data[41:]])
        index.write_bytes({"cut": data[:100], "empty": b"", "a flipped bit": flipped}[what])
    with refused("encoded-damaged", says=damaged.name):
        EncodedStore.open(tmp_path)
    damaged.unlink()
    if damaged == index:
        shard.unlink()
    assert EncodedStore.open(tmp_path).missing([wanted(n).key for n in range(4)]) == {wanted(0).key, wanted(1).key}


def test_what_is_forgotten_is_missing_whoever_stored_it(tmp_path: Path) -> None:
    """This process in this start, another one meanwhile, or an earlier start."""
    theirs, mine = EncodedStore.open(tmp_path), filled(tmp_path)
    theirs.refresh()
    for store in (mine, theirs, EncodedStore.open(tmp_path)):
        store.forget(wanted(1).key)
        assert store.missing([wanted(n).key for n in range(4)]) == {wanted(1).key}
        assert wanted(1).key not in store


def _is_damaged(store: EncodedStore, number: int) -> bool:
    try:
        store.read(wanted(number).key)
    except DamagedEntry:
        return True
    return False


def test_removed_entries_are_gone_and_the_others_stay(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.remove({wanted(0).key, wanted(2).key, wanted(3).key}) > 0
    for opened in (store, EncodedStore.open(tmp_path)):
        assert [n for n in range(4) if wanted(n).key in opened] == [1]
        assert torch.equal(opened.read(wanted(1).key), torch.full((2, 3), 1.0))
    assert len(list((tmp_path / "shards").iterdir())) == 1


@pytest.mark.parametrize("room", [0, 1])
def test_a_full_disk_gets_room(tmp_path: Path, room: int) -> None:
    """Whole shards go first; where one has others, and there is still no room to write them anew, they go too."""
    store = filled(tmp_path, commits=3)

    def disk(call: str, path: Path) -> None:
        if call == "open" and len(list((tmp_path / "index").iterdir())) > (2 if room else 0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with storage.guarded(disk):
        assert store.remove({wanted(n).key for n in (0, 4, 5)}) > 0
    for opened in (store, EncodedStore.open(tmp_path)):
        assert [n for n in range(6) if wanted(n).key in opened] == ([1, 2, 3] if room else [2, 3])
    assert not [row for row, problem in store.verify() if problem]
    assert len(list((tmp_path / "shards").iterdir())) == len(list((tmp_path / "index").iterdir())) == 1 + room


def test_a_deletion_ends_where_its_lock_is_lost(tmp_path: Path) -> None:
    store = filled(tmp_path, commits=3)

    def lose(call: str, path: Path) -> None:
        if call == "unlink" and path.suffix == ".parquet":
            (tmp_path / ".lock").unlink()

    with storage.guarded(lose), refused("lock-lost", "encode.folder", says="its lock file was removed"):
        store.remove({wanted(n).key for n in range(6)})
    assert len(list((tmp_path / "index").iterdir())) == 2
    assert not [problem for _, problem in EncodedStore.open(tmp_path).verify() if problem]


def test_deletions_of_two_processes_take_only_what_they_name(tmp_path: Path) -> None:
    """The shard that the other one wrote anew is not that which this one knew, and values stored meanwhile stay."""
    first, late = filled(tmp_path, commits=1), EncodedStore.open(tmp_path)
    numbers = [number for number in range(50) if wanted(number).key in first]
    first.remove({wanted(numbers[0]).key})
    first.put(wanted(99), torch.ones(2))
    first.commit()
    late.remove({wanted(numbers[1]).key})
    assert [n for n in range(100) if wanted(n).key in EncodedStore.open(tmp_path)] == [*numbers[2:], 99]
    assert not [problem for _, problem in late.verify() if problem]


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("doing", ["open", "refresh", "table", "verify"])
def test_what_another_process_deletes_meanwhile_is_no_damage(
    doing: str, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each index that is read, or after."""
    number, read_table = 0, store_module.pq.read_table
    calls = [number]
    while calls[0] >= number:
        calls, number = [0], number + 1
        store, other = filled(tmp_path / str(number)), EncodedStore.open(tmp_path / str(number))
        store._parts.clear()

        def meanwhile(
            *args: Any, calls: list[int] = calls, other: EncodedStore = other, number: int = number, **options: Any
        ) -> Any:
            calls[0] += 1
            rows = read_table(*args, **options) if is_read else None
            if calls[0] == number:
                other.remove({wanted(n).key for n in (1, 2, 3)})
            return read_table(*args, **options) if rows is None else rows

        with monkeypatch.context() as patch:
            patch.setattr(store_module.pq, "read_table", meanwhile)
            if doing == "verify":
                assert not [problem for _, problem in store.verify() if problem]
            else:
                EncodedStore.open(store.path) if doing == "open" else getattr(store, doing)()
    assert number > 2


def test_one_process_at_a_time_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one of them is about to do with a file, the other would take what is in two shards for one too many."""
    monkeypatch.setattr(lock, "_PROBE_SECONDS", 0.0)
    number = 0
    while True:
        number += 1
        store, other, calls = filled(tmp_path / str(number)), EncodedStore.open(tmp_path / str(number)), 0

        def disk(call: str, path: Path, other: EncodedStore = other, number: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls == number:
                with refused("run-locked", "encode.folder", says="another deletion"):
                    other.remove({wanted(2).key})

        with storage.guarded(disk):
            store.remove({wanted(0).key})
        if calls < number:
            break
        assert [n for n in range(4) if wanted(n).key in EncodedStore.open(store.path)] == [1, 2, 3]
    assert number > 4


def test_no_file_is_mapped_when_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows would refuse."""
    store, unlink, removed = filled(tmp_path), storage.unlink, []

    def watched(path: Path) -> None:
        assert path.suffix != ".safetensors" or not store._map.cache_info().currsize
        removed.append(path.suffix)
        unlink(path)

    monkeypatch.setattr(storage, "unlink", watched)
    assert store.read(wanted(0).key) is not None
    assert store._map.cache_info().currsize
    store.remove({wanted(0).key})
    assert ".safetensors" in removed


def test_what_was_stored_last_of_a_key_stays_the_last(tmp_path: Path) -> None:
    """Also when the shard of its damaged predecessor is written anew without another entry."""
    store = filled(tmp_path, commits=1)
    store.forget(wanted(0).key)
    store.put(wanted(0), torch.ones(1))
    store.commit()
    store.remove({wanted(1).key})
    for opened in (store, EncodedStore.open(tmp_path)):
        assert torch.equal(opened.read(wanted(0).key), torch.ones(1))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    EncodedStore.open(tmp_path)
    (tmp_path / "format.json").write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(UserError) as error:
        EncodedStore.open(tmp_path)
    assert error.value.code == "encoded-format"


@settings(max_examples=40, deadline=None)
@given(
    mask=st.lists(st.booleans(), min_size=1, max_size=12),
    width=st.integers(1, 5),
    pooled=st.integers(0, 4),
    narrow=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float16]),
)
def test_a_packed_embedding_keeps_every_token_that_counts(
    mask: list[bool], width: int, pooled: int, narrow: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(len(mask))
    tokens = torch.randn(1, len(mask), width, generator=generator)
    mask_BL = torch.tensor([mask])
    tokens = torch.where(mask_BL[..., None], tokens, torch.zeros(()))
    pooled_BP = torch.randn(1, pooled, generator=generator)
    if narrow:
        tokens, pooled_BP = tokens.bfloat16().float(), pooled_BP.bfloat16().float()
    tokens, pooled_BP = tokens.to(dtype), pooled_BP.to(dtype)
    packed = values.pack(TextEmbedding(tokens, mask_BL, pooled_BP))
    again = values.unpack(packed)
    assert torch.equal(again.tokens, tokens.float())
    assert torch.equal(again.mask, mask_BL)
    assert torch.equal(again.pooled, pooled_BP.float())
    least = sum(mask) * width + pooled
    assert packed.nbytes <= 48 + len(mask) + 4 * least
    if narrow:
        assert packed.nbytes == 48 + len(mask) + 2 * least


def test_what_is_encoded_again_counts_though_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the clock of another node is ahead."""
    for nanoseconds, value in ((2 * 10**18, 1.0), (10**18, 2.0)):
        monkeypatch.setattr(store_module.time, "time_ns", lambda now=nanoseconds: now)
        store = EncodedStore.open(tmp_path)
        store.put(wanted(0), torch.full((2,), value))
        store.commit()
    assert EncodedStore.open(tmp_path).read(wanted(0).key).tolist() == [2.0, 2.0]
    assert [problem for _, problem in EncodedStore.open(tmp_path).verify()] == [""]
