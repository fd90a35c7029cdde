"""A record is read as it was written or refused by name; nothing between, wherever a process dies."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reelworks.core import storage
from reelworks.data.run import records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import About, BucketShape, Key, Outcome, Record, RecordedFailure, RecordError

KEY = (0, 3, 1)
LABELS = ["none", "too_small", "no_caption", "in_exclude_file", records.CONSUMED]

Place = tuple[int, int, int]
Other = tuple[int, int, int, int, str | None]


class Killed(BaseException):
    """The process is gone: nothing that handles errors may help."""


def about(key: Key = KEY, **changes: Any) -> About:
    data_restarts, epoch, segment = key
    return About(
        data_restarts=data_restarts,
        epoch=epoch,
        segment=segment,
        time=1.7e9,
        first_step=40,
        steps=7,
        planned=12,
        plan="plan of " + "-".join(map(str, key)),
        catalog_digest="catalog",
        spec_digest="spec",
        spec={"seed": 7, "batch_sizes": [4, 2]},
        recipe="recipe-01234567.toml",
        exclude_list=None,
        costs="costs-01234567.json",
        catalog="catalog-000",
        catalog_version=2,
        catalog_uids="uids",
        datasets=["film", "photos"],
        buckets=[BucketShape(name="32px 1:1 ×1", num_frames=1, height=32, width=32, batch_size=4)],
        entries=["32px ×1"],
    ).model_copy(update=changes)


def record(
    steps: list[dict[int, tuple[int, list[Place]]]],
    others: Sequence[Other] = (),
    aliases: Mapping[int, int] = MappingProxyType({}),
    **changes: Any,
) -> Record:
    """A record of steps, each with its micro-batches by column: bucket and places."""
    batches = [
        (plan_step, column, *in_step[column]) for plan_step, in_step in enumerate(steps) for column in sorted(in_step)
    ]
    ordinal, copy, repeat_index = _columns([place for *_, places in batches for place in places], 3)
    plan_step, column, bucket, size = _columns([(*at, len(places)) for *at, places in batches], 4)
    other_ordinal, other_copy, reason, nearest = _columns([one[:4] for one in others], 4)
    return Record(
        about=about(**changes),
        ordinal=ordinal,
        copy=copy,
        repeat_index=repeat_index.astype(np.int32),
        plan_step=plan_step,
        column=column,
        bucket=bucket,
        size=size,
        other_ordinal=other_ordinal,
        other_copy=other_copy,
        other_reason=reason.astype(np.int32),
        other_nearest=nearest.astype(np.int32),
        other_note=pa.chunked_array([pa.array([one[4] for one in others], type=pa.string())]),
        labels=LABELS,
        alias_ordinal=np.array(sorted(aliases), dtype=np.int64),
        alias_key=np.array([aliases[o] for o in sorted(aliases)], dtype=np.uint64),
    )


def _columns(rows: Sequence[Sequence[int]], number: int) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(-1, number).T


def small(key: Key = KEY, first: int = 0, **changes: Any) -> Record:
    """A record with something in each file."""
    steps = [{0: (0, [(first + 5, 0, 0), (first + 2, 1, 0)]), 1: (1, [(first + 9, 0, 0), (first + 5, 0, 1)])}]
    others: list[Other] = [(first + 3, 0, 1, 0, None), (first + 4, 0, 4, -1, None), (first + 7, 0, 2, -1, "x")]
    return record(steps, others, {first + 2: 2**64 - 1}, key=key, **changes)


def values(one: Record) -> dict[str, Any]:
    """All that a record says, in plain values; the names of reasons instead of their numbers."""
    said: dict[str, Any] = {
        f.name: (str(array.dtype), array.tolist())
        for f in fields(Record)
        if isinstance(array := getattr(one, f.name), np.ndarray)
    }
    said["other_reason"] = [one.labels[i] for i in one.other_reason]
    return said | {"note": one.other_note.to_pylist(), "about": one.about.model_copy(update={"files": {}})}


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """A process that dies takes nothing back that it has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


ordinals = st.integers(0, 40) | st.integers(2**31 - 2, 2**31 + 2) | st.integers(0, 2**40)
clips = st.tuples(ordinals, st.integers(0, 4), st.integers(-1, 3))
micro_batches = st.tuples(st.integers(0, 5), st.lists(clips, min_size=1, max_size=4))
planned = st.lists(st.dictionaries(st.integers(0, 3), micro_batches, max_size=3), max_size=5)
unplanned = st.lists(
    st.tuples(
        ordinals,
        st.integers(0, 4),
        st.integers(0, len(LABELS) - 1),
        st.integers(-1, 6),
        st.none() | st.text(max_size=5),
    ),
    max_size=8,
)
renamed = st.dictionaries(ordinals, st.integers(0, 2**64 - 1), max_size=4)


@settings(max_examples=settings().max_examples * 3 // 10)
@given(planned, unplanned, renamed)
def test_what_is_read_is_what_was_written(
    steps: list[dict[int, tuple[int, list[Place]]]], others: list[Other], aliases: dict[int, int]
) -> None:
    written = record(steps, others, aliases)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        records.write(run, written)
        assert values(records.read(run, KEY, written.about.plan)) == values(written)
        assert records.keys(run) == [KEY]
        assert records.read_about(run, KEY).model_copy(update={"files": {}}) == written.about


@settings(max_examples=40)
@given(planned, st.integers(0, 6))
def test_clips_before_a_step_are_those_that_earlier_steps_consume(
    steps: list[dict[int, tuple[int, list[Place]]]], plan_step: int
) -> None:
    """A showing that fills or pads a batch consumes nothing; a step may lack columns, or have none at all."""
    one = record(steps)
    expected = [
        (ordinal, copy)
        for in_step in steps[:plan_step]
        for column in sorted(in_step)
        for ordinal, copy, repeat_index in in_step[column][1]
        if repeat_index == 0
    ]
    ordinal, copy = one.before(plan_step)
    assert list(zip(ordinal.tolist(), copy.tolist(), strict=True)) == expected
    assert one.step_of_place().tolist() == [
        number for number, in_step in enumerate(steps) for _, places in in_step.values() for _ in places
    ]


def test_clips_that_an_earlier_segment_took_are_told_by_their_label() -> None:
    one = small()
    assert one.consumed.tolist() == [False, True, False]
    assert one.is_first_use.tolist() == [True, True, True, False]
    assert not replace(one, labels=["none"] * len(LABELS)).consumed.any()


def test_more_clips_than_parquet_keeps_together_are_read_as_they_were_written(run: RunFolder) -> None:
    """A file of more than 2^20 rows comes in several parts."""
    number = 2**20 + 3
    reason = np.where(np.arange(number) < 2**20, 1, 3).astype(np.int32)
    written = replace(
        small(),
        other_ordinal=np.arange(number),
        other_copy=np.zeros(number, dtype=np.int64),
        other_reason=reason,
        other_nearest=np.full(number, -1, dtype=np.int32),
        other_note=pa.chunked_array([pa.nulls(number, pa.string())]),
    )
    records.write(run, written)
    found = records.read(run, KEY)
    assert np.array_equal(np.array(found.labels)[found.other_reason], np.array(LABELS)[reason])
    assert np.array_equal(found.other_ordinal, written.other_ordinal)


PARQUET = ["places.parquet", "micro_batches.parquet", "others.parquet", "aliases.parquet"]


@pytest.mark.parametrize("name", PARQUET)
def test_any_damaged_byte_of_a_table_is_found(run: RunFolder, name: str) -> None:
    records.write(run, small())
    file = records.path(run, KEY) / name
    whole = file.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 20)]
    for text in (*flipped, b"", whole[:-1], whole + b"\0"):
        file.write_bytes(text)
        with pytest.raises(RecordError, match=rf"segment-000-000003-001/{name} is damaged"):
            records.read(run, KEY)
    file.unlink()
    with pytest.raises(RecordError, match=rf"segment-000-000003-001/{name} cannot be read"):
        records.read(run, KEY)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "x"}', "\udcff"])
def test_an_about_file_that_says_nothing_is_no_record(run: RunFolder, text: str) -> None:
    records.write(run, small())
    file = records.path(run, KEY) / "about.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    for read in (records.read, records.read_about):
        with pytest.raises(RecordError, match=r"segment-000-000003-001/about.json cannot be read"):
            read(run, KEY)
    file.unlink()
    for read in (records.read, records.read_about):
        with pytest.raises(RecordError, match=r"segment-000-000003-001 does not exist"):
            read(run, KEY)


def test_the_record_of_another_plan_or_segment_or_of_a_newer_version_is_refused(run: RunFolder) -> None:
    written = small()
    records.write(run, written)
    assert records.read(run, KEY, written.about.plan).about.plan == written.about.plan
    with pytest.raises(RecordError, match=r"segment-000-000003-001 belongs to another plan"):
        records.read(run, KEY, "another")
    shutil.copytree(records.path(run, KEY), records.path(run, (0, 3, 2)))
    with pytest.raises(RecordError, match=r"segment-000-000003-002 has a newer format or belongs to another segment"):
        records.read(run, (0, 3, 2))
    records.write(run, small(format=records.FORMAT_VERSION + 1))
    with pytest.raises(RecordError, match=r"segment-000-000003-001 has a newer format"):
        records.read(run, KEY)


def test_records_are_listed_by_generation_epoch_and_segment(run: RunFolder) -> None:
    assert records.keys(run) == []
    wanted = [(0, 2, 0), (0, 10, 0), (0, 10, 1), (1, 200_000, 0), (1, 1_234_567, 0), (1000, 0, 0)]
    for key in reversed(wanted):
        records.write(run, small(key))
    (run.coverage_folder / "segment-mine").mkdir()
    (run.coverage_folder / "epoch-000002.jsonl").write_text("{}\n", encoding="utf-8")
    assert records.keys(run) == wanted
    records.drop(run, (0, 10, 0))
    records.drop(run, (0, 99, 0))
    assert records.keys(run) == [key for key in wanted if key != (0, 10, 0)]


def killed(work: Callable[[], object], die_at: int, *, torn: bool = False) -> list[str]:
    """Do something until a storage call, with which the process dies; returns the calls that it came to.

    Args:
        work: What to do.
        die_at: The call that does not happen any more, from 1.
        torn: If it is a write, a part of it happens.
    """
    calls: list[str] = []

    def guard(call: str, path: Path) -> int | None:
        calls.append(call)
        if torn and len(calls) == die_at:
            return 3
        if len(calls) >= die_at:
            raise Killed
        return None

    try:
        with storage.guarded(guard):
            work()
    except Killed:
        pass
    return calls


@pytest.mark.parametrize("there", [False, True])
def test_wherever_a_write_dies_there_is_no_record_or_a_whole_one(tmp_path: Path, there: bool) -> None:
    """For each storage call: the former one, none or the new one; the next write heals and leaves nothing else."""
    former, new, seen = small(), small(first=100), set()

    def attempt(number: int, *, torn: bool = False) -> list[str]:
        run = RunFolder(tmp_path / f"{number} {torn}")
        if there:
            records.write(run, former)
            records.write_outcome(run, KEY, Outcome(steps=3))
        calls = killed(lambda: records.write(run, new), number, torn=torn)
        seen.add(_state(run, {"former": former, "new": new}))
        records.write(run, new)
        assert _state(run, {"new": new}) == ("new", None)
        assert [file.name for file in run.coverage_folder.iterdir()] == ["segment-000-000003-001"]
        return calls

    calls = attempt(10**9)
    assert len(calls) > 20
    for number, call in enumerate(calls, 1):
        attempt(number)
        if call == "write":
            attempt(number, torn=True)
    assert seen == {("none", None), ("new", None)} | ({("former", 3)} if there else set())


def _state(run: RunFolder, may_be: dict[str, Record]) -> tuple[str, int | None]:
    """Which record is there, and the steps of its end."""
    try:
        found = values(records.read(run, KEY))
    except RecordError as error:
        return ("none" if "does not exist" in str(error) else str(error)), None
    (name,) = [name for name, one in may_be.items() if values(one) == found]
    outcome = records.read_outcome(run, KEY)
    return name, None if outcome is None else outcome.steps


def test_a_record_replaces_the_former_one_of_its_segment_with_its_end(run: RunFolder) -> None:
    records.write(run, small())
    records.write_outcome(run, KEY, Outcome(steps=3))
    without_aliases = replace(small(first=100), alias_ordinal=np.zeros(0, np.int64), alias_key=np.zeros(0, np.uint64))
    records.write(run, without_aliases)
    assert values(records.read(run, KEY)) == values(without_aliases)
    assert records.read_outcome(run, KEY) is None
    assert not (records.path(run, KEY) / "aliases.parquet").exists()


def test_how_a_segment_ended_is_read_as_it_was_written(run: RunFolder) -> None:
    outcome = Outcome(
        steps=5,
        skipped=[1, 4],
        failures=[RecordedFailure(plan_step=2, uid=2**64 - 1, copy_index=3, reason="torn: “é”")],
    )
    records.write_outcome(run, KEY, outcome)
    assert not run.coverage_folder.exists()  # it belongs to a record
    records.write(run, small())
    assert records.read_outcome(run, KEY) is None
    for told in (Outcome(steps=0), outcome):
        records.write_outcome(run, KEY, told)
        assert records.read_outcome(run, KEY) == told
    assert values(records.read(run, KEY)) == values(small())
    file = records.path(run, KEY) / "outcome.json"
    for text in (b"", file.read_bytes()[:-3], b"{}", b"\xff"):
        file.write_bytes(text)
        with pytest.raises(RecordError, match=r"segment-000-000003-001/outcome.json cannot be read"):
            records.read_outcome(run, KEY)


def test_an_end_that_dies_in_writing_leaves_the_former_one(run: RunFolder) -> None:
    records.write(run, small())
    records.write_outcome(run, KEY, Outcome(steps=2))
    for number in range(1, 10):
        calls = killed(lambda: records.write_outcome(run, KEY, Outcome(steps=3)), number)
        assert records.read_outcome(run, KEY) in (Outcome(steps=2), Outcome(steps=3))
        assert values(records.read(run, KEY)) == values(small())
        if len(calls) < number:
            break
        records.write_outcome(run, KEY, Outcome(steps=2))
    assert records.read_outcome(run, KEY) == Outcome(steps=3)
    assert number > 4


@pytest.mark.parametrize(
    ("step", "key", "open_"),
    [
        (49, (1, 0, 0), {(1, 0, 0)}),  # training goes on before a segment in which nothing was left
        (49, None, set()),  # nothing is left to train
        (46, (0, 1, 1), {(0, 1, 1), (1, 0, 0), (1, 1, 0)}),
        (47, (0, 1, 1), {(0, 1, 1), (1, 0, 0), (1, 1, 0)}),  # the end of the segment, whose plan has more steps
        (45, (0, 1, 1), {(0, 1, 1), (1, 0, 0), (1, 1, 0)}),
        (41, (0, 0, 0), {(0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0)}),
        (43, (0, 1, 0), {(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0)}),
        (49, (1, 0, 1), set()),  # a new segment, which has no record yet
    ],
)
def test_a_run_that_goes_back_takes_back_the_ends_beyond(
    run: RunFolder, step: int, key: Key | None, open_: set[Key]
) -> None:
    ends = {(0, 0, 0): (40, 3), (0, 1, 0): (43, 2), (0, 1, 1): (45, 2), (1, 0, 0): (47, 2), (1, 1, 0): (49, 0)}
    for segment, (first_step, steps) in ends.items():
        records.write(run, small(segment, first_step=first_step))
        records.write_outcome(run, segment, Outcome(steps=steps))
    records.reopen(run, step, key)
    assert {segment for segment in ends if records.read_outcome(run, segment) is None} == open_
    assert all(values(records.read(run, segment)) for segment in ends)


def fill(run: RunFolder, key: Key, size: int) -> None:
    """Let a segment take so much room."""
    records.path(run, key).mkdir(parents=True)
    (records.path(run, key) / "places.parquet").write_bytes(bytes(size))


epochs = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 3)), st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=6
)


@settings(max_examples=40)
@given(epochs, st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=3), st.integers(0, 60))
def test_the_oldest_epochs_that_are_not_in_use_go_until_the_others_fit(
    sizes: dict[tuple[int, int], list[int]], in_use: set[tuple[int, int]], limit: int
) -> None:
    left, gone = dict(sizes), []
    for epoch in sorted(sizes):
        if sum(map(sum, left.values())) > limit and epoch not in in_use:
            del left[epoch]
            gone.append(epoch)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        for epoch, segments in sizes.items():
            for segment, size in enumerate(segments):
                fill(run, (*epoch, segment), size)
        assert list(records.prune(run, limit, in_use, lambda epoch: {"planned": sum(epoch)})) == gone
        assert {key[:2] for key in records.keys(run)} == left.keys()
        assert {key: line["planned"] for key, line in records.pruned(run).items()} == {
            epoch: sum(epoch) for epoch in gone
        }
        assert list(records.prune(run, limit, in_use, lambda epoch: {})) == []


def test_totals_are_found_while_the_records_are_there_and_kept_when_they_are_gone(run: RunFolder) -> None:
    for key in ((0, 0, 0), (0, 0, 1), (0, 1, 0)):
        records.write(run, small(key))
    size = records.size_bytes(run, (0, 1, 0))
    assert size == sum(f.stat().st_size for f in records.path(run, (0, 1, 0)).iterdir())

    def totals(epoch: tuple[int, int]) -> dict[str, Any]:
        segments = [key for key in records.keys(run) if key[:2] == epoch]
        return {"planned": sum(records.read(run, key).about.planned for key in segments), "counts": {"x": 1}}

    assert list(records.prune(run, size, [], totals)) == [(0, 0)]
    assert records.keys(run) == [(0, 1, 0)]
    assert values(records.read(run, (0, 1, 0)))
    (kept,) = records.pruned(run).values()
    assert (kept["data_restarts"], kept["epoch"], kept["planned"], kept["counts"]) == (0, 0, 24, {"x": 1})
    assert kept["time"] > 1.7e9


@pytest.mark.parametrize("clock", [-1e6, 0.0, 1e6])
def test_an_epoch_that_is_trained_again_has_records_again_whatever_clocks_say(run: RunFolder, clock: float) -> None:
    """A run goes on on machines whose clocks differ; of two records of a segment, the times do."""
    records.write(run, small((0, 0, 0)))
    assert list(records.prune(run, 0, [], lambda epoch: {"planned": 12})) == [(0, 0)]
    assert records.pruned(run).keys() == {(0, 0)}
    records.write(run, small((0, 0, 0), time=time.time() + clock))
    assert not records.pruned(run)
    assert list(records.prune(run, 0, [], lambda epoch: {"planned": 12})) == [(0, 0)]
    assert records.pruned(run).keys() == {(0, 0)}
    fill(run, (0, 0, 0), 1)  # what a kill leaves of one
    assert records.pruned(run).keys() == {(0, 0)}


def test_wherever_making_room_dies_totals_are_kept_of_what_is_gone(tmp_path: Path) -> None:
    """For each storage call: an epoch that lacks a record has its totals, and the next start completes it."""
    wanted = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 2, 0)]

    def attempt(number: int) -> list[str]:
        run = RunFolder(tmp_path / str(number))
        for key in wanted:
            fill(run, key, 10)

        def room() -> list[tuple[int, int]]:
            return list(records.prune(run, 0, [(0, 2)], lambda epoch: {"planned": 7}))

        calls = killed(room, number)
        whole = {key for key in records.keys(run) if records.size_bytes(run, key)}
        assert {key[:2] for key in wanted if key not in whole} <= records.pruned(run).keys()
        room()
        assert [key for key in records.keys(run) if records.size_bytes(run, key)] == [(0, 2, 0)]
        assert records.pruned(run).keys() == {(0, 0), (0, 1)}
        return calls

    for number in range(1, len(attempt(10**9)) + 1):
        attempt(number)


def test_a_damaged_byte_of_the_values_is_found(run: RunFolder) -> None:
    records.write(run, small())
    records.write_outcome(run, KEY, Outcome(steps=5, skipped=[1]))
    before = values(records.read(run, KEY)), records.read_outcome(run, KEY)
    for name in ("about.json", "outcome.json"):
        file = records.path(run, KEY) / name
        whole = file.read_bytes()
        for at in range(0, len(whole), 4):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            try:
                found = values(records.read(run, KEY)), records.read_outcome(run, KEY)
            except RecordError:
                continue
            assert found == before, (name, at)
        file.write_bytes(whole)
