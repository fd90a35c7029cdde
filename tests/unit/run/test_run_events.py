from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from reelworks.data.run import events
from reelworks.data.run.events import EventLog
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
    assert len(events.timeline(log.path, "step")) == 2
    assert len(events.timeline(log.path)) == 3
