"""The index of a run's events tells what reading all of them tells, however the file grows."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.annexes.page import event_index
from reelworks.annexes.page.event_index import EventIndex
from reelworks.data.run import events
from reelworks.training.coverage import speed


def speed_of(step):
    """Fields as runs write them, in another order, or without some."""
    fields = {"applied": step % 3 > 0, "learning_rate": 1e-05, "clips": step % 4, "repeated": 0, "tokens": 1}
    fields |= {"seconds": 0.5, "data_wait_seconds": 1e-05 * step}
    return [fields, dict(reversed(fields.items())), {"clips": 2}, fields][step % 4]


def lines_of(runs):
    """Events of starts that each go back a little, with some steps and a validation after each fifth."""
    done, lines = 0, []
    for steps, back in runs:
        resumed = max(0, done - back) or None
        lines.append(
            {"v": 1, "time": float(len(lines)), "kind": "start", "step": resumed or 0, "resumed_from": resumed}
        )
        done = resumed or 0
        for _ in range(steps):
            done += 1
            loss = None if done % 7 == 0 else 1 / done + len(lines)
            lines.append(
                {"v": 1, "time": float(len(lines)), "kind": "step", "step": done, "epoch": 0, "loss": loss}
                | speed_of(done)
            )
            if done % 23 == 0:  # with a field of another type than that of steps
                lines.append(
                    {"v": 1, "time": float(len(lines)), "kind": "spike", "step": done, "clips": [{"uid": "a"}]}
                )
            if done % 5 == 0:
                lines.append({"v": 1, "time": float(len(lines)), "kind": "validation", "step": done, "loss": 0.5})
    return lines


runs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=5)


@settings(max_examples=40)
@given(runs, st.integers(1, 400))
@pytest.mark.slow
def test_it_has_the_valid_events_however_it_was_read(tmp_path_factory, runs, piece):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines_of(runs))
    index = EventIndex(path)
    for end in [*range(piece, len(data), max(piece, len(data) // 20)), len(data)]:  # also in the middle of lines
        path.write_bytes(data[:end])
        index.update()
    valid = events.timeline(path)
    expected = speed.total(speed.of_step(event) for event in valid if event["kind"] == "step")
    assert index.speed() == pytest.approx(expected)
    assert index.steps(10_000) == [event for event in valid if event["kind"] == "step"]
    assert index.valid_others() == [event for event in valid if event["kind"] != "step"]
    assert [event["time"] for event in index.sessions()] == sorted(event["time"] for event in index.sessions())
    assert index.num_steps == sum(event["kind"] == "step" for event in events.read(path))


@given(runs, st.integers(2, 12))
def test_of_many_steps_the_means_are_kept(tmp_path_factory, runs, most):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines_of(runs)), encoding="utf-8")
    index = EventIndex(path)
    index.update()
    every, few = index.steps(10_000), index.steps(most)
    assert len(few) <= most
    if every:
        assert few[-1]["step"] == every[-1]["step"]
        ends = [event["step"] for event in few]
        for before, event in zip([-1, *ends], few, strict=False):
            block = [e["loss"] for e in every if before < e["step"] <= event["step"] and e["loss"] is not None]
            if len(few) < len(every):
                assert (event["loss"] is None) == (not block)
                assert not block or math.isclose(event["loss"], sum(block) / len(block))


def test_fields_in_another_order_are_read_too(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind":"step","loss":0.25,"step":3,"time":1.0}\n', encoding="utf-8")
    index = EventIndex(path)
    index.update()
    assert [(e["step"], e["loss"]) for e in index.steps()] == [(3, 0.25)]


def test_a_file_that_was_begun_anew_is_read_anew(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines_of([(9, 0)])), encoding="utf-8")
    index = EventIndex(path)
    index.update()
    path.unlink()
    assert not index.update()
    assert index.steps() == []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines_of([(4, 0)])), encoding="utf-8")
    index.update()
    assert [event["step"] for event in index.steps()] == [1, 2, 3, 4]


def test_steps_that_a_start_makes_void_are_gone_before_it_trains_one(tmp_path):
    path = tmp_path / "events.jsonl"
    lines = lines_of([(9, 0), (0, 5)])
    index = EventIndex(path)
    for end, last in ((-1, 9), (len(lines), 4)):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[:end]), encoding="utf-8")
        index.update()
        assert [event["step"] for event in index.steps()] == list(range(1, last + 1))


def test_the_time_of_a_step_is_that_between_the_last_ones(tmp_path):
    path = tmp_path / "events.jsonl"
    steps = [{"kind": "step", "loss": 1.0, "step": 10 + n, "time": float(n**2)} for n in range(5)]
    path.write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    index = EventIndex(path)
    assert index.seconds_per_step(9) is None
    index.update()
    assert [index.seconds_per_step(most) for most in (1, 2, 3, 9)] == [None, 7.0, 6.0, 4.0]
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(steps[-1] | {"step": 15, "time": 0.0}) + "\n")
    index.update()
    assert index.seconds_per_step(2) is None  # the clock was set back


def test_one_that_rests_has_what_a_list_shows_and_all_again_when_it_is_needed_or_grows(tmp_path):
    path = tmp_path / "events.jsonl"
    lines = [json.dumps(line) + "\n" for line in lines_of([(900, 0), (300, 200), (100, 0)])]
    path.write_text("".join(lines[:-1]), encoding="utf-8")

    def shown(index, whole):
        index.update(whole=whole)
        few = index.steps(event_index.SPARK_STEPS), index.last_step(), index.seconds_per_step(event_index.SPEED_STEPS)
        return *few, index.others, index.num_steps, index.complete

    def every(index):
        return index.steps(), index.sessions(), index.speed(), len(index.valid_steps())

    resting, awake = EventIndex(path), EventIndex(path)
    for whole in (False, True):
        resting.update()
        resting.rest()
        assert resting.rests
        assert shown(resting, whole) == shown(awake, True)
        assert resting.rests != whole
    assert every(resting) == every(awake)
    resting.rest()
    assert sum(map(len, (resting._offset, resting._step, *resting._numbers.values()))) < 100
    path.write_text("".join(lines), encoding="utf-8")
    assert shown(resting, False) == shown(awake, True)
    assert every(resting) == every(awake)
    path.write_text("".join(lines) + '{"kind":', encoding="utf-8")  # by a kill: it would be read at each look
    resting.update()
    resting.rest()
    assert not resting.rests
