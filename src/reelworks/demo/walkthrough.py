"""`reelworks demo`: make sample footage, scan, plan, train, kill, resume, generate and report.

Every step runs the command that a user types. The demo fails if the model did not learn: validation loss above half of
its start, or fewer than 9 of 10 prompts in their colour. How many have their shape, direction and background is told.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelworks.analysis import plan_report
from reelworks.core import terminal, toml
from reelworks.core.shape import Shape
from reelworks.demo import judge, sample_recipe
from reelworks.demo.scenes import PROMPTS
from reelworks.generate import writers
from reelworks.media.decode import Request, load
from reelworks.run import events
from reelworks.run.folder import RunFolder

DEMO = Path("demo")
FOOTAGE, GENERATED = DEMO / "footage", DEMO / "generated"
RUN = RunFolder(DEMO / "run")
SHAPE = Shape(num_frames=17, height=64, width=96)
KILL_AT_SHARE = 0.45

REELWORKS = [sys.executable, "-m", "reelworks"]


RECIPE = sample_recipe.path()


def main() -> int:
    """Run all steps and return the exit code."""
    began = time.monotonic()
    shutil.rmtree(DEMO, ignore_errors=True)
    _say(1, "sample footage")
    _reelworks("demo-data", str(FOOTAGE))
    _say(2, "scan")
    _reelworks("scan", str(FOOTAGE), "-o", str(RUN.path / "catalog"))
    _say(3, "plan")
    _reelworks("plan", str(RECIPE))
    _say(4, "train, kill in the middle, resume with the same command")
    killed_at = _train_and_kill()
    terminal.say(f"killed with SIGKILL after step {killed_at}; now the same command resumes")
    _reelworks("train", str(RECIPE))
    _say(5, "checkpoints")
    _reelworks("checkpoints", "ls", str(RUN.path))
    _say(6, "generate")
    clips = _generate()
    _say(7, "report")
    _reelworks("report", str(RUN.path))
    return _summary(clips, time.monotonic() - began)


def _say(number: int, title: str) -> None:
    terminal.say(f"\n== {number}. {title}")


def _reelworks(*arguments: str) -> None:
    terminal.say(f"$ reelworks {' '.join(a if a.isprintable() and ' ' not in a else repr(a) for a in arguments)}")
    subprocess.run([*REELWORKS, *arguments], check=True)


def _train_and_kill() -> int:
    """Train until near the middle, kill the process, and return the last step in its events."""
    total = toml.parse(RECIPE.read_text())["train"]["max_steps"]
    terminal.say(f"$ reelworks train {RECIPE}")
    process = subprocess.Popen([*REELWORKS, "train", str(RECIPE)])
    while (step := _last_step()) < total * KILL_AT_SHARE:
        if process.poll() is not None:
            raise SystemExit(f"training ended by itself at step {step} with code {process.returncode}")
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return _last_step()


def _last_step() -> int:
    return max((e["step"] for e in events.read(RUN.events_file, "step")), default=0)


def _generate() -> list[NDArray[np.uint8]]:
    """Generate a clip for every prompt and a contact sheet, and return the clips as read from their files."""
    prompts = [argument for prompt in PROMPTS for argument in ("--prompt", prompt.text)]
    size = ["--height", str(SHAPE.height), "--width", str(SHAPE.width), "--num-frames", str(SHAPE.num_frames)]
    _reelworks("generate", str(RUN.path), *prompts, *size, "-o", str(GENERATED / "{index}.mp4"))
    first = ["--height", str(SHAPE.height), "--width", str(SHAPE.width), "--num-frames", "1"]
    _reelworks("generate", str(RUN.path), "--prompt", PROMPTS[0].text, *first, "-o", str(GENERATED / "picture.png"))
    clips = [load(Request(GENERATED / f"{i:02d}.mp4", False, SHAPE)) for i in range(len(PROMPTS))]
    rows = [clips[i : i + 2] for i in range(0, len(clips), 2)]
    labels = [[p.text + ("" if p.seen else "  (new)") for p in PROMPTS[i : i + 2]] for i in range(0, len(clips), 2)]
    writers.contact_sheet(rows, labels, height_px=96).save(GENERATED / "sheet.png")
    return clips


def _summary(clips: list[NDArray[np.uint8]], seconds: float) -> int:
    plan = plan_report.read_summary(RUN)
    assert plan is not None
    losses = [e["loss"] for e in events.timeline(RUN.events_file, "validation")]
    answers = [judge.judge(clip).agrees(prompt.subject) for prompt, clip in zip(PROMPTS, clips, strict=True)]
    left_out = sum(len(files) for files in plan.reasons.values())
    by_reason = ", ".join(f"{counts.clips} {reason}" for reason, counts in plan.left_out.items())
    kept = list(events.read(RUN.events_file, "retention"))[-1]["kept"]
    terminal.say("\n== summary")
    terminal.say(f"clips scanned      {plan.catalog.clips}")
    terminal.say(f"planned per epoch  {plan.planned}")
    terminal.say(f"left out           {left_out}: {by_reason}")
    terminal.say(f"validation loss    {losses[0]:.4f} before, {losses[-1]:.4f} after ({losses[-1] / losses[0]:.0%})")
    for label, seen in (("seen prompts", True), ("new prompts", False)):
        these = [answer for prompt, answer in zip(PROMPTS, answers, strict=True) if prompt.seen == seen]
        right = ", ".join(f"{word} {_right(these, word)}" for word in judge.Verdict._fields)
        terminal.say(f"{label:<18} right of {len(these)}: {right}")
    for checkpoint in kept:
        terminal.say(f"checkpoint kept    step {checkpoint['step']}: {'; '.join(checkpoint['reasons'])}")
    terminal.say(f"report             {RUN.report_file}")
    terminal.say(f"clips              {GENERATED}")
    terminal.say(f"time               {seconds:.0f} s")
    explained = plan.planned + left_out == plan.catalog.clips
    checks = {
        "validation loss falls to at most 50 % of its start": losses[-1] <= 0.5 * losses[0],
        "at least 9 of 10 prompts give a clip in their colour": _right(answers, "colour") >= 9,
        "every scanned clip is planned or left out with a reason": explained,
    }
    for text, holds in checks.items():
        terminal.say(f"{'ok    ' if holds else 'FAILED'} {text}")
    return 0 if all(checks.values()) else 1


def _right(answers: list[dict[str, bool]], word: str) -> int:
    return sum(answer[word] for answer in answers)
