"""A command that is asked to end leaves nothing half written, and has the exit code of one that was ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reelworks.core import system

_PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from reelworks.commands.app import App
from reelworks.core import files

app = App()
word = sys.argv.pop()
if hasattr(signal, "SIGHUP"):  # whether or not the tests run below nohup
    signal.signal(signal.SIGHUP, signal.SIG_IGN if word == "ignores" else signal.SIG_DFL)
if word == "listens":
    signal.signal(signal.SIGTERM, lambda *_: print("heard"))

@app.command("write", doing=None)
def write() -> None:
    "Write a file."
    with files.replacing(Path("out.txt")) as part:
        part.write_text("half", encoding="utf-8")
        {then}

app()
"""
_WAIT = "print('begun', flush=True); time.sleep(60)"


def begin(folder: Path, then: str, word: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _PROGRAM.format(then=then), word]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, **system.REACHABLE)


@pytest.mark.parametrize("name", ["END", *(["SIGHUP"] if hasattr(signal, "SIGHUP") else [])])
def test_what_is_half_written_is_removed(name: str, tmp_path: Path) -> None:
    with begin(tmp_path, _WAIT, "plain") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"begun"
        assert len([*tmp_path.iterdir()]) == 1
        system.ask_to_end(process.pid) if name == "END" else process.send_signal(signal.Signals[name])
        assert process.wait(30) == (system.ENDED if name == "END" else -signal.Signals[name])
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(system.WINDOWS, reason="no SIGHUP and no fork")
def test_an_ignored_signal_stays_ignored_and_a_fork_removes_nothing(tmp_path: Path) -> None:
    """Below `nohup`, and in a child whose parent goes on with the file."""
    then = (
        "signal.raise_signal(signal.SIGHUP); child = os.fork(); child or signal.raise_signal(signal.SIGTERM); "
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), part.read_text(encoding='utf-8'))"
    )
    with begin(tmp_path, then, "ignores") as process:
        assert process.communicate(timeout=30)[0].split() == [b"-15", b"half"]
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_a_rank_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may wait for it."""
    monkeypatch.setenv("RANK", "1")
    with begin(tmp_path, _WAIT, "plain") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"begun"
        system.ask_to_end(process.pid)
        assert process.wait(30) == system.ENDED
    assert len([*tmp_path.iterdir()]) == 1


def test_a_program_that_calls_a_command_keeps_its_own_handler(tmp_path: Path) -> None:
    then = "signal.raise_signal(signal.SIGTERM); print(part.read_text(encoding='utf-8'))"
    with begin(tmp_path, then, "listens") as process:
        assert process.communicate(timeout=30)[0].split() == [b"heard", b"half"]


@pytest.mark.slow(reason="a start of the program")
def test_help_says_why_it_has_few_texts() -> None:
    command = [sys.executable, "-OO", "-m", "reelworks", "scan", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, encoding="utf-8")
    assert "leaves out docstrings" in done.stderr
