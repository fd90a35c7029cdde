from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from reelworks.core import files
from reelworks.data.run import events, history
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop.training_loop import EndReason


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl")


def _train(log: EventLog, steps: range, resumed_from: int | None) -> None:
    log.write("start", resumed_from=resumed_from)
    for step in steps:
        log.write("step", step=step, loss=float(step))


def test_the_page_lists_every_kind_and_reason_that_is_written() -> None:
    """And no other kind; by the calls that write events, whose kind is the first argument."""
    root = Path(__file__).parents[3]
    page = (root / "docs/reference/events.md").read_text(encoding="utf-8")
    calls = re.compile(r"""(?:\.event|\bevent|[Ll]og\.write)\(\s*(?:kind=)?"([a-z_]+)",""")
    sources = [file.read_text(encoding="utf-8") for file in (root / "src").rglob("*.py")]
    written = {kind for text in sources for kind in calls.findall(text)}
    listed = re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)
    assert written == set(listed)
    (stop,) = re.findall(r"^\| `stop` \| (.*) \|$", page, re.MULTILINE)
    assert {reason for reason in get_args(EndReason) if f'`"{reason}"`' not in stop} == set()


def test_events_carry_version_time_and_kind(log: EventLog) -> None:
    log.write("step", step=1, loss=0.5)
    log.write("validation", step=1, loss=0.4)
    (event,) = events.read(log.path, "step")
    assert (event["v"], event["kind"], event["step"], event["loss"]) == (1, "step", 1, 0.5)
    assert event["time"] > 1.7e9
    assert len(list(events.read(log.path))) == 2


def test_no_file_is_no_event(tmp_path: Path) -> None:
    assert list(events.read(tmp_path / "none.jsonl")) == events.timeline(tmp_path / "none.jsonl") == []


def test_a_resume_voids_what_it_repeats(log: EventLog) -> None:
    _train(log, range(1, 14), None)
    _train(log, range(11, 16), 10)
    _train(log, range(13, 17), 12)
    assert [e["step"] for e in events.timeline(log.path, "step")] == list(range(1, 17))
    assert [e["resumed_from"] for e in events.timeline(log.path, "start")] == [None, 10, 12]


def test_a_run_killed_before_its_first_checkpoint_begins_again(log: EventLog) -> None:
    _train(log, range(1, 6), None)
    _train(log, range(1, 4), None)
    assert [e["step"] for e in events.timeline(log.path, "step")] == [1, 2, 3]


def test_what_it_did_before_its_first_step_is_void_too(log: EventLog) -> None:
    for plan in ("former", "new"):
        log.write("start", step=0, resumed_from=None)
        log.write("epoch", step=0, plan=plan)
    assert [e["plan"] for e in events.timeline(log.path, "epoch")] == ["new"]


def test_lines_of_other_programs_are_passed_over(log: EventLog) -> None:
    log.path.write_text('{"something": 1}\n', encoding="utf-8")
    _train(log, range(1, 3), None)
    with log.path.open("a", encoding="utf-8") as file:
        file.write(f'{{"kind": "step", "step": {2**63}}}\n{{"kind": "stop", "step": 1e999}}\n')
    assert len(events.timeline(log.path, "step")) == 2
    assert len(events.timeline(log.path)) == 3


def _random_history(log: EventLog, seed: int) -> None:
    """Starts that go back anywhere, with events of several kinds, of the next step or one before it, between."""
    draw = random.Random(seed)
    step = 0
    for _ in range(draw.randrange(1, 9)):
        resumed = draw.choice([None, draw.randrange(step + 1)])
        step = resumed or 0
        log.write("start", step=step, resumed_from=resumed, recipe="a.toml", world_size=1)
        for _ in range(draw.randrange(6)):
            kind = draw.choice(["step", "validation", "failure", "stop"])
            step += kind == "step"
            log.write(kind, **({} if kind == "stop" else {"step": max(step - (kind == "validation"), 0)}))


@pytest.mark.parametrize("seed", range(25))
def test_what_holds_is_what_each_later_start_leaves(log: EventLog, seed: int) -> None:
    _random_history(log, seed)
    expected: list[events.Event] = []
    for event in files.read_json_lines(log.path):
        if event["kind"] == "start":
            last = -1 if event["resumed_from"] is None else event["resumed_from"]
            expected = [e for e in expected if e["kind"] == "start" or e.get("step", 0) <= last]
        expected.append(event)
    assert events.timeline(log.path) == expected
    for kinds in (("step",), ("start", "validation"), ("failure",)):
        assert events.timeline(log.path, *kinds) == [e for e in expected if e["kind"] in kinds]
        with events.kept(log.path):
            assert events.timeline(log.path, *kinds) == [e for e in expected if e["kind"] in kinds]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that are parsed."""
    lines: list[bytes] = []
    loads: Callable[[bytes], object] = files.json.loads
    monkeypatch.setattr(files.json, "loads", lambda line: (lines.append(line), loads(line))[1])
    return lines


def test_a_start_parses_no_step_and_each_other_event_once(log: EventLog, parsed: list[bytes], tmp_path: Path) -> None:
    """Whatever is asked, and what it told meanwhile is seen."""
    for number in range(30):
        _train(log, range(number * 9 + 1, number * 9 + 10), number * 9 or None)
        log.write("checkpoint", step=number * 9 + 9)
    with events.kept(log.path):
        for _ in range(9):
            assert len(events.timeline(log.path, "start")) == 30
            assert events.timeline(log.path, "checkpoint")[-1]["step"] == 270
        assert len(parsed) == 60
        log.write("start", resumed_from=260)
        assert events.timeline(log.path, "checkpoint")[-1]["step"] == 252
        assert len(parsed) == 61


def test_a_line_that_is_being_written_is_read_once_it_is_whole(log: EventLog) -> None:
    log.write("stop", reason="signal")
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-9])
    with events.kept(log.path):
        assert list(events.read(log.path, "stop")) == []
        with log.path.open("ab") as file:
            file.write(whole[-9:-1])
        assert len(list(events.read(log.path, "stop"))) == 1
        with log.path.open("ab") as file:
            file.write(whole[-1:])
        assert len(list(events.read(log.path, "stop"))) == 1


def test_the_steps_of_one_epoch_are_read_without_those_of_others(log: EventLog, parsed: list[bytes]) -> None:
    for number in range(20):
        restarts, epoch = divmod(number, 10)
        where = {"data_restarts": restarts, "epoch": epoch, "segment": 0, "planned": 9, "plan": f"plan {number}"}
        log.write("start", step=number * 9, resumed_from=number * 9 or None, recipe="a.toml", world_size=1)
        log.write("epoch", step=number * 9, **where)
        for plan_step in range(9):
            log.write("step", step=number * 9 + plan_step + 1, epoch=epoch, plan_step=plan_step, clips=1)
    run = RunFolder(log.path.parent)
    (told,) = history.epochs(run, (0, 7))
    assert told == history.epochs(run)[7]
    del parsed[:]
    history.epochs(run, (0, 7))
    assert len(parsed) == 20 + 20 + 20 + 9  # starts, twice, and the epochs
