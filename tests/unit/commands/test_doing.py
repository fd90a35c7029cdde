"""Every command says what it is doing once it was silent for a while."""

from __future__ import annotations

import time

import pytest
from typer.main import get_command

from reelworks.commands.main import app
from reelworks.core import log


def commands(group, path=()):
    for name, command in group.commands.items():
        yield from commands(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]


ALL = list(commands(get_command(app)))
SPEAK_THEMSELVES = {("demo",), ("train",), ("ui",), ("trust",)}


def run(command, monkeypatch, **params):
    """Run a command with seconds of 10 ms, which does nothing until it was told of twice, or for ten such seconds."""
    monkeypatch.setattr(log, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(log, "_SECONDS", 0.01)
    spoken, speak = [], log._Stage._speak
    monkeypatch.setattr(log._Stage, "_speak", lambda stage: (speak(stage), spoken.append(stage)))

    def nothing(**_):
        until = time.monotonic() + (5 if log._stages else 0.1)
        while len(spoken) < 2 and time.monotonic() < until:
            time.sleep(0.001)

    monkeypatch.setattr(command, "callback", nothing)
    context = command.make_context("command", [], resilient_parsing=True)
    context.params = params
    command.invoke(context)


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_a_silent_command_says_what_it_does_beside_its_answer(path, command, monkeypatch, capfd):
    run(command, monkeypatch, json=False)
    said = capfd.readouterr()
    first, *others = [*(said.err or said.out).splitlines(), ""]
    assert bool(first) == (path not in SPEAK_THEMSELVES)
    assert (said.out == "") == (path != ("encode", "run"))  # which has no other answer than its lines
    assert all(line.startswith(f"{first}: ") and line.endswith("s so far") for line in others[:-1])


def test_nothing_is_said_beside_json(monkeypatch, capfd):
    """On stdout; on stderr only a command that has no other answer than its lines goes on saying them."""
    for path, command in ALL:
        run(command, monkeypatch, json=True)
        said = capfd.readouterr()
        assert (said.out, said.err == "") == ("", path != ("encode", "run")), path
