"""What strangers wrote reaches the terminal as signs: names, captions and prompts command nothing."""

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelworks.commands import show
from reelworks.core import log, terminal
from reelworks.core.log import logger

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
    table = show.new_table("a name", "a number")
    table.add_row(TRICKS, "1")
    show.print_table(table)
    with log.to_terminal():
        logger.warning("caption %s", TRICKS)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert not OBEYED.search(text)
        assert "␛]0;title␇" in text
    assert printed.out.count("[red]bold[/red] :smile:") == 3


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
