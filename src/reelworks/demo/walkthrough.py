"""`reelworks demo`: make sample footage, scan, train an autoencoder, plan, train, kill, resume, generate and report.

Every step runs the command that a user types. The demo fails if the model did not learn: validation loss above half of
its start, or too few of ten clips with the words of their prompts, as `judge` sees them in the frames.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelworks.core import machine, terminal, toml
from reelworks.core.shape import Shape
from reelworks.data.media.decode import Request, load
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.demo import judge, sample_recipe
from reelworks.demo.scenes import PROMPTS
from reelworks.inference.generate import writers
from reelworks.training.plan import plan_report

DEMO = Path("demo")
FOOTAGE, GENERATED, AUTOENCODER = DEMO / "footage", DEMO / "generated", DEMO / "autoencoder.safetensors"
RUN = RunFolder(DEMO / "run")
SUMMARY = DEMO / "summary.json"  # of ten prompts, how many are right in each word; and seconds
SHAPE = Shape(num_frames=8, height=64, width=96)
KILL_AT_SHARE = 0.47
LEAST_RIGHT = {"colour": 9, "shape": 4, "direction": 8}  # clips of ten
QUICK_STEPS = 240  # of a quick demo
_MOST_THREADS = 4  # more of them wait for one another: tensors are small

REELWORKS = [sys.executable, "-m", "reelworks"]


RECIPE = sample_recipe.path("demo")


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo.

    Attributes:
        left_out: Clips that are not trained, by reason.
        right: Of ten generated clips, those with each word of their prompts, as the judge sees them.
        checks: Sentences that hold, or do not; a quick demo checks nothing.
        clips: Contact sheet of the generated clips.
    """

    scanned: int
    planned: int
    left_out: dict[str, int]
    validation_loss_before: float
    validation_loss_after: float
    right: dict[str, int]
    seconds: float
    seconds_by_part: dict[str, float]
    checks: dict[str, bool]
    run: Path
    report: Path
    clips: Path


def main(*, quick: bool = False, seed: int = 42) -> DemoResult:
    """Run all steps; `seed` is that of the two trainings."""
    shutil.rmtree(DEMO, ignore_errors=True)
    clock = _Clock()
    _say(1, "sample footage")
    _reelworks("demo-data", str(FOOTAGE))
    _say(2, "scan")
    _reelworks("scan", str(FOOTAGE), "-o", str(RUN.path / "catalog"))
    clock.lap("footage and scan")
    _say(3, "autoencoder")
    _reelworks("demo-autoencoder", str(RUN.path / "catalog"), str(AUTOENCODER), "--seed", str(seed))
    clock.lap("autoencoder")
    _say(4, "plan")
    recipe = [str(RECIPE), "--set", f"seed={seed}"]
    _reelworks("plan", *recipe)
    if quick:
        _say(5, "train")
        _reelworks("train", *recipe, "--max-steps", str(QUICK_STEPS))
    else:
        _say(5, "train, kill in the middle, resume with the same command")
        killed_at = _train_and_kill(recipe)
        terminal.say(f"killed with SIGKILL after step {killed_at}; now the same command resumes")
        _reelworks("train", *recipe)
    clock.lap("training")
    _say(6, "checkpoints")
    _reelworks("checkpoints", "ls", str(RUN.path))
    _say(7, "generate")
    clips = _generate()
    _write_previews()
    _say(8, "report")
    _reelworks("report", str(RUN.path))
    clock.lap("generating and report")
    return _summary(clips, clock, quick=quick)


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._began = self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = round(now - self._last, 1), now

    @property
    def seconds(self) -> float:
        return self._last - self._began

    def text(self) -> str:
        return f"{self.seconds:.0f} s: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.laps.items())


def _say(number: int, title: str) -> None:
    terminal.say(f"\n== {number}. {title}")


def _reelworks(*arguments: str) -> None:
    terminal.say(f"$ reelworks {' '.join(a if a.isprintable() and ' ' not in a else repr(a) for a in arguments)}")
    subprocess.run([*REELWORKS, *arguments], check=True, stdout=sys.stdout, env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(min(machine.threads(), _MOST_THREADS))}


def _train_and_kill(recipe: list[str]) -> int:
    """Train until near the middle, kill the process, and return the last step in its events."""
    total = toml.parse(RECIPE.read_text(encoding="utf-8"))["train"]["max_steps"]
    terminal.say(f"$ reelworks train {' '.join(recipe)}")
    process = subprocess.Popen([*REELWORKS, "train", *recipe], stdout=sys.stdout, env=_environment())
    while (step := _last_step()) < total * KILL_AT_SHARE:
        if process.poll() is not None:
            raise SystemExit(f"training ended by itself at step {step} with code {process.returncode}")
        time.sleep(0.2)
    process.kill()
    process.wait()
    return _last_step()


def _last_step() -> int:
    return max((e["step"] for e in events.read(RUN.events_file, "step")), default=0)


def _generate() -> list[NDArray[np.uint8]]:
    """Generate a clip for every prompt and a contact sheet, and return the clips as read from their files."""
    prompts = [argument for prompt in PROMPTS for argument in ("--prompt", prompt.caption)]
    size = ["--height", str(SHAPE.height), "--width", str(SHAPE.width), "--num-frames", str(SHAPE.num_frames)]
    _reelworks("generate", str(RUN.path), *prompts, *size, "-o", str(GENERATED / "{index}.mp4"))
    first = ["--height", str(SHAPE.height), "--width", str(SHAPE.width), "--num-frames", "1"]
    _reelworks("generate", str(RUN.path), "--prompt", PROMPTS[0].caption, *first, "-o", str(GENERATED / "picture.png"))
    clips = [load(Request(GENERATED / f"{i:02d}.mp4", False, SHAPE)) for i in range(len(PROMPTS))]
    rows = [clips[i : i + 2] for i in range(0, len(clips), 2)]
    labels = [[p.caption + ("" if p.seen else "  (new)") for p in PROMPTS[i : i + 2]] for i in range(0, len(clips), 2)]
    writers.contact_sheet(rows, labels, height_px=96).save(GENERATED / "sheet.png")
    return clips


def _write_previews() -> None:
    """Draw the previews of each checkpoint below those of the one before, so that one sees the model learn."""
    folders = sorted(RUN.samples_folder.iterdir())
    previews = [[load(Request(file, False, SHAPE)) for file in sorted(folder.glob("*.mp4"))] for folder in folders]
    labels = [
        [f"step {int(folder.name.removeprefix('step-'))}"] * len(row)
        for folder, row in zip(folders, previews, strict=True)
    ]
    writers.contact_sheet(previews, labels, height_px=96).save(GENERATED / "learning.png")


def _summary(clips: list[NDArray[np.uint8]], clock: _Clock, *, quick: bool) -> DemoResult:
    plan = plan_report.read_summary(RUN)
    assert plan is not None
    losses = [e["loss"] for e in events.timeline(RUN.events_file, "validation")]
    answers = [judge.judge(clip).agrees(prompt) for prompt, clip in zip(PROMPTS, clips, strict=True)]
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
    terminal.say(f"clips              {GENERATED / 'sheet.png'}; as they were learned: {GENERATED / 'learning.png'}")
    terminal.say(f"time               {clock.text()}")
    all_right = {word: _right(answers, word) for word in judge.Verdict._fields}
    SUMMARY.write_text(
        json.dumps({**all_right, "seconds": round(clock.seconds), "parts": clock.laps}, indent=1) + "\n",
        encoding="utf-8",
    )
    explained = plan.planned + left_out == plan.catalog.clips
    checks = (
        {}
        if quick
        else {
            "validation loss falls to at most 50 % of its start": losses[-1] <= 0.5 * losses[0],
            **{
                f"at least {least} of 10 prompts give a clip with their {word}": _right(answers, word) >= least
                for word, least in LEAST_RIGHT.items()
            },
            "every scanned clip is planned or left out with a reason": explained,
        }
    )
    for text, holds in checks.items():
        terminal.say(f"{'ok    ' if holds else 'FAILED'} {text}")
    if quick:
        terminal.say(
            "not shown          a kill and its resume, motion, shapes: `reelworks demo` takes some minutes and shows them"
        )
    return DemoResult(
        scanned=plan.catalog.clips,
        planned=plan.planned,
        left_out={reason: counts.clips for reason, counts in plan.left_out.items()},
        validation_loss_before=losses[0],
        validation_loss_after=losses[-1],
        right=all_right,
        seconds=round(clock.seconds, 1),
        seconds_by_part=clock.laps,
        checks=checks,
        run=RUN.path,
        report=RUN.report_file,
        clips=GENERATED / "sheet.png",
    )


def _right(answers: list[dict[str, bool]], word: str) -> int:
    return sum(answer[word] for answer in answers)
