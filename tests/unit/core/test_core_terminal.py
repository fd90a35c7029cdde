"""What strangers wrote reaches the terminal as signs: names, captions and prompts command nothing."""

import io
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.commands import show
from reelworks.commands.app import App, Commands
from reelworks.core import log, terminal
from reelworks.core.log import logger, to_terminal

TRICKS = "\x1b]0;title\x07 \x1b[2J \r\x9b31m \u202etxt.exe [red]bold[/red] :smile: tab\there"
# All that a terminal obeys in text, but for tab and line feed.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@given(st.text())
def test_no_control_is_left_and_nothing_else_is_changed(text):
    shown = terminal.plain(text)
    assert not OBEYED.search(shown)
    assert len(shown) == len(text)
    assert all(after == before for before, after in zip(text, shown, strict=True) if before.isalnum())


def test_lines_errors_tables_and_the_log_show_signs(capsys):
    show.line(TRICKS)
    show.line(TRICKS, error=True)
    show.table(("a name", "a number"), [(TRICKS, 1)])
    with log.to_terminal():
        logger.warning("caption %s", TRICKS)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert not OBEYED.search(text)
        assert "␛]0;title␇" in text
    assert printed.out.count("[red]bold[/red] :smile:") == 3


@given(
    st.text(alphabet="a \n]"),
    st.sampled_from(["a\nerror: it is lost", "a\n\nerror: it is lost", "\nerror: it is lost"]),
)
def test_a_name_begins_no_line_of_its_own(text, name):
    """Lines of messages are indented, and an empty one may stand before them."""
    for line in terminal.plain(f"  clip {text}{name}, and {name}\n  remedy: {name}").splitlines():
        assert not line.startswith("error")
    message = "\nerror: a.mp4 is lost\n  remedy: find it\n"
    assert terminal.plain(message) == message


def test_a_name_in_a_table_is_one_line(capsys):
    show.table(("a name", "a number"), [("a\nerror: it is lost", 1)])
    assert any("a␊error: it is lost" in line and "1" in line for line in capsys.readouterr().out.splitlines())


def test_texts_of_files_and_json_keep_their_lines(capsys):
    text = "version = 1\n\n[train]\nlr = 1\n"
    show.line(text, is_file=True)
    assert capsys.readouterr().out == text + "\n"
    show.json(value := {"a": [{"b": "c\nd"}], "e": {}})
    assert json.loads(capsys.readouterr().out) == value


def test_json_keeps_its_values(capsys):
    show.json({"caption": TRICKS + "\x7f"})
    text = capsys.readouterr().out
    assert not OBEYED.search(text)
    assert json.loads(text) == {"caption": TRICKS + "\x7f"}


def test_a_name_that_is_no_text_is_printed(monkeypatch: pytest.MonkeyPatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    monkeypatch.setattr("sys.stdout", narrow)
    terminal.say("clip-\udce4-語.mp4")
    narrow.flush()
    assert narrow.buffer.getvalue() == b"clip-\\udce4-\\u8a9e.mp4\n"  # type: ignore[attr-defined]


@pytest.fixture(params=["read", "closed", "full"] if sys.platform == "linux" else ["read", "closed"])
def lost(request: pytest.FixtureRequest) -> Iterator[tuple[str, TextIO]]:
    """A stream that takes nothing: what reads it has ended, its disk is full, or somebody closed it later."""
    reader, writer = os.pipe()
    os.close(reader)
    if request.param == "full":
        os.dup2(full := os.open("/dev/full", os.O_WRONLY), writer)
        os.close(full)
    stream = os.fdopen(writer, "w", encoding="utf-8")
    yield request.param, stream
    with suppress(OSError):
        stream.close()


def _print_to(lost: tuple[str, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", lost[1])
    terminal.use_steady_streams()
    if lost[0] == "closed":
        lost[1].close()


_APP = App(cls=Commands, pretty_exceptions_enable=False)


@_APP.command("plan", doing="planning")
def _answers() -> None:
    terminal.say("an answer")


@_APP.command("train", doing=None, answers=False)
def _tells(code: int) -> None:
    for _ in range(3):
        logger.info("a step")
        terminal.say("a line")
    raise typer.Exit(code)


def test_an_answer_that_nobody_got_is_told_and_one_of_which_enough_was_read_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[str, TextIO]
):
    """As of `reelworks plan | head`, or into a file on a full disk."""
    _print_to(lost, monkeypatch)
    if (says := {"full": "No space left", "closed": "closed file"}.get(lost[0])) is not None:
        with refused("output-unwritable", "standard output", says=says):
            _APP(["plan"])
    else:
        with pytest.raises(SystemExit) as left:
            _APP(["plan"])
        assert left.value.code == 128 + signal.SIGPIPE


@pytest.mark.parametrize("code", ["0", "75"])
def test_work_whose_output_only_tells_goes_on_without_it(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[str, TextIO], code: str
):
    _print_to(lost, monkeypatch)
    with pytest.raises(SystemExit) as left:
        _APP(["train", code])
    assert left.value.code == int(code)


def test_a_program_of_ones_own_is_not_ended_by_its_lost_output_either(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[str, TextIO]
):
    monkeypatch.setattr("sys.stdout", lost[1])
    if lost[0] == "closed":
        lost[1].close()
    with to_terminal():
        for _ in range(3):
            logger.info("a step")
    assert terminal.steady(lost[1]).lost is not None


def test_a_line_may_be_printed_while_another_waits(monkeypatch: pytest.MonkeyPatch):
    """As by the handler of a signal that comes while a terminal takes nothing."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "flush", lambda: (_ for _ in ()).throw(RuntimeError("reentrant call")))
    monkeypatch.setattr("sys.stdout", stream)
    terminal.say("one")
    terminal.say("two")
    assert stream.getvalue() == "one\ntwo\n"
