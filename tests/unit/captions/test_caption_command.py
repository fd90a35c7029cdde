"""A command of the user gets the question as a line of JSON, and cannot hang, flood or break a run."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import media_makers as media
import numpy as np
import psutil
import pytest
from PIL import Image

from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.captioner import Answer, CaptionQuestion
from reelworks.annexes.captions.command import CommandCaptioner
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.core import system

pytestmark = pytest.mark.skipif(
    system.WINDOWS, reason="captioners are commands of sh and sed here; test_caption_verb has another"
)


QUESTION = CaptionQuestion("/data/a.mp4", "video", "What?", media.numbered(3, (48, 64)))


def captioner(command: str, timeout: float = 60.0) -> CommandCaptioner:
    return CommandCaptioner(CaptionRequest(data=("x",), command=command, timeout=timeout))


def reason(command: str, timeout: float = 60.0) -> str:
    (found,) = captioner(command, timeout).answer([QUESTION])
    assert isinstance(found, CaptionFailed), found
    return str(found)


def test_it_gets_path_prompt_and_frames(tmp_path: Path) -> None:
    kept = tmp_path / "asked.json"
    (found,) = captioner(f"sh -c 'tee {kept} | cut -c 2-7; cp $(grep -oE /[^\\\"]*000.jpg {kept}) {tmp_path}'").answer(
        [QUESTION]
    )
    assert found == Answer('"path"\n')
    asked = json.loads(kept.read_text(encoding="utf-8"))
    assert (asked["path"], asked["kind"], asked["prompt"]) == ("/data/a.mp4", "video", "What?")
    assert len(asked["frames"]) == 3
    assert not any(Path(frame).exists() for frame in asked["frames"])
    with Image.open(tmp_path / "frame-000.jpg") as first:
        assert media.differ(np.asarray(first), QUESTION.frames[0]) < 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("true", "printed nothing"),
        ("sh -c 'echo; echo'", "printed nothing"),
        (r"printf 'caf\351'", "not UTF-8"),
        ("sh -c 'echo oops >&2; exit 3'", "ended with code 3: oops"),
        ("sh -c 'kill -9 $$'", "signal 9"),
        ("sh -c 'exec 0<&-; exit 1'", "ended with code 1"),
    ],
)
def test_what_is_no_caption_is_a_reason(command: str, said: str) -> None:
    assert said in reason(command)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    kept = tmp_path / "child"
    began = time.monotonic()
    assert "did not end within 1 s" in reason(f"sh -c 'sleep 1000 & echo $! > {kept}; wait'", timeout=1.0)
    assert time.monotonic() - began < 30
    child = int(kept.read_text(encoding="utf-8"))
    until = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "the child lives"
        time.sleep(0.02)


def test_a_command_that_floods_is_killed() -> None:
    assert "printed more than" in reason("yes")


def test_stop_ends_what_runs() -> None:
    asked = captioner("sleep 1000")
    threading.Timer(0.1, asked.stop).start()
    (found,) = asked.answer([QUESTION])
    assert isinstance(found, CaptionFailed)
    assert str(found) == "stopped"


def test_an_argument_is_no_shell(tmp_path: Path) -> None:
    (found,) = captioner(f"{sys.executable} -c 'import sys; print(sys.argv[1:])' ';' touch {tmp_path}/x").answer(
        [QUESTION]
    )
    assert isinstance(found, Answer)
    assert not (tmp_path / "x").exists()
