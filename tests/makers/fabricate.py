"""A run folder as training leaves it, made of real events, clips and files."""

import functools
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import plan_summaries

from reelworks.core import files
from reelworks.data.checkpoint import names
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import writers
from reelworks.training.plan.plan_report import CatalogCounts, PlanSummary

HOSTILE = 'a <script>alert("x")</script> & a ball'
PROMPTS = ["a red disc rolls to the right over a meadow", "waves under a low sun", HOSTILE, "a still life"]
BUCKETS = [("80px 3:2 ×17", 17, 64, 96, 2, 31), ("80px 1:1 ×17", 17, 80, 80, 2, 13), ("80px 3:2 ×1", 1, 64, 96, 8, 20)]
BEGUN = 1_790_000_000.0


class Clock:
    def __init__(self, run: RunFolder) -> None:
        self.run, self.now = run, BEGUN

    def tell(self, kind: str, after: float = 0.0, /, **fields: object) -> None:
        self.now += after
        files.append_json_line(self.run.events_file, {"v": 1, "time": self.now, "kind": kind, **fields})


def frames(index: int, sharpness: float, count: int = 17) -> np.ndarray:
    """A disc that moves over a gradient, out of noise as `sharpness` goes to 1."""
    noise = np.random.default_rng(index).uniform(0, 255, (count, 64, 96, 3))
    t, y, x = np.mgrid[0:count, 0:64, 0:96]
    sky = np.stack([90 + x, 120 + 1.2 * y, 200 - y + 10 * index], axis=-1)
    disc = (x - 12 - 70 * t / count) ** 2 + (y - 32 - 12 * np.sin(t / 3 + index)) ** 2 < 120
    clean = np.where(disc[..., None], [230, 70 + 40 * index, 60], sky)
    return (sharpness * clean + (1 - sharpness) * noise).clip(0, 255).astype(np.uint8)


@functools.cache
def preview(index: int, sharpness: float) -> bytes:
    """The bytes of a sample, the last of which is a picture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.png" if index == 3 else "a.mp4")
        writers.write(path, frames(index, sharpness, 1 if index == 3 else 17), 12)
        return path.read_bytes()


def summary() -> PlanSummary:
    buckets = [
        plan_summaries.bucket(clips, frames, height, width, tokens=frames * 24, name=name, batch_size=size)
        for name, frames, height, width, size, clips in BUCKETS
    ]
    reasons = {
        "unreadable": [("raw/<b>broken</b>.mp4", "moov atom not found")],
        "no_caption": [(f"shots/{i:03}.mp4", "no text beside it") for i in range(3)],
        "too_short": [("shots/blink.mp4", "9 frames, the nearest bucket takes 17")],
        "held_out": [(f"shots/v{i}.mp4", "") for i in range(4)],
        "filtered": [],
    }
    return plan_summaries.summary(
        *buckets, reasons=reasons, catalog=CatalogCounts(73, 51, 22, 1), planned=64, held_out=4, steps_per_epoch=13,
        imbalance=0.034, padding=0.021,
    )  # fmt: skip


def step(clock: Clock, number: int, rng: random.Random, total: int) -> None:
    names = [bucket[0] for bucket in BUCKETS]
    base = 0.25 + 0.9 * math.exp(-3 * number / total)
    by_bucket = {
        name: base * (0.8 + 0.2 * i) * rng.uniform(0.85, 1.15) for i, name in enumerate(names) if rng.random() < 0.7
    }
    clips, seconds = rng.choice([4, 5, 8]), rng.uniform(0.45, 0.6)
    clock.tell(
        "step", seconds, step=number, epoch=(number - 1) // 13, plan_step=(number - 1) % 13,
        loss=base * rng.uniform(0.8, 1.2), loss_by_bucket=by_bucket,
        loss_by_timestep={"0-100": base * 0.3, "900-1000": base * 1.4}, applied=True,
        **({"grad_norm_by_block": {"blocks.0": 0.4 * base, "blocks.1": 0.1 * base, "rest": 0.0}} if number % 10 == 0 else {}),
        learning_rate=1e-4 * min(1, number / 30) * (1 - 0.7 * number / total),
        grad_norm=rng.uniform(0.6, 1.4) * base, clips=clips, tokens=clips * 408, seconds=seconds,
        data_wait_seconds=0.1 * seconds, decode_p50_seconds=0.012, decode_p99_seconds=0.34, queue_bytes=123_000_000,
        buckets=list(by_bucket),
    )  # fmt: skip


def make(path: Path, steps: int = 300, every: int = 60, crash_at: int = 170) -> RunFolder:
    """Train for a while, crash between two checkpoints, resume, be asked to leave, resume, finish."""
    run = RunFolder(path)
    run.create()
    run.checkpoints_folder.mkdir()
    files.write_json(run.plan_folder / "summary.json", summary())
    run.recipe_file.write_text('version = 1\nname = "<i>demo</i>"\n[train]\nmax_steps = 300\n', encoding="utf-8")
    versions = {"python": "3.12.3", "torch": "2.13.0", "reelworks": "0.1.0"}
    files.write_json(run.environment_file, {"versions": versions, "machine": "lab-3", "threads": 2})
    clock, rng = Clock(run), random.Random(1)
    start = {"world_size": 1, "micro_batches_per_step": 2, "same_bucket_run": 2, "threads": 2, "device": "cpu"}
    start["recipe"] = run.recipe_file.name
    clock.tell("start", resumed_from=None, **start)
    saved: list[int] = []
    train(clock, rng, saved, 1, crash_at, steps, every)
    resumed = saved[-1]
    clock.tell("start", 340, resumed_from=resumed, **start)
    leave = min(steps - 1, resumed + every + every // 2)
    train(clock, rng, saved, resumed + 1, leave, steps, every)
    clock.tell("signal", step=leave, name="SIGTERM")
    save(clock, rng, saved, leave, steps)
    clock.tell("stop", step=leave, reason="signal")
    clock.tell("start", 4000, resumed_from=leave, **start | {"world_size": 2})
    train(clock, rng, saved, leave + 1, steps, steps, every)
    clock.tell("stop", step=steps, reason="max_steps")
    return run


def measure_alike(run: RunFolder, prompts: list[str] = PROMPTS) -> Any:
    """Leave what `eval --checkpoints` does: six steps, of which the third is the one to use."""
    from reelworks.core.shape import Shape  # which need torch
    from reelworks.inference.evaluate.checkpoint_series import CheckpointSeries, MeasuredCheckpoint
    from reelworks.inference.evaluate.measure import MetricResult

    likeness, closeness = (0.2, 0.6, 0.7, 0.7, 0.7, 0.69), (0.3, 0.4, 0.5, 0.7, 1.1, 1.9)
    losses, measured = (0.5, 0.3, 0.2, 0.25, 0.3, 0.35), []
    for i, (like, close, loss) in enumerate(zip(likeness, closeness, losses, strict=True), 1):
        folder = run.evaluations_folder / "checkpoints-k" / names.of_step(100 * i)
        folder.mkdir(parents=True)
        clips = [folder / f"{n:02}.{'png' if n == 3 else 'mp4'}" for n in range(len(prompts))]
        for n, clip in enumerate(clips):
            clip.write_bytes(preview(min(n, 3), i / 6))
        metrics = [
            MetricResult("likeness-pixels", True, like, 2),
            MetricResult("closeness-pixels", False, close, 2, None, {"00": close}, {"00": f"{HOSTILE}.mp4"}),
            MetricResult("clip-score", True, None, 0, "no weights"),
        ]
        measured.append(MeasuredCheckpoint(100 * i, "id", loss, metrics, clips))
    series = CheckpointSeries(run.path, "ema", "k", prompts, 7, Shape(17, 64, 96), measured)
    files.write_json(series.file(), series)
    return series


def note_losses(run: RunFolder, losses: list[float], step: int = 10) -> None:
    """Save a checkpoint that holds losses of clips."""
    from reelworks.annexes.learning.losses import FILE, ClipLosses, LossesAbout
    from reelworks.data.checkpoint import save  # which needs torch
    from reelworks.data.checkpoint.folder import CheckpointFolder

    about = LossesAbout(step=step, buckets=("a",), course=())
    table = ClipLosses.empty(about, len(losses))
    table.key[:] = np.arange(len(losses))
    table.shown[:] = 20
    table.recent[:] = np.log(losses)
    save.save(CheckpointFolder(run.checkpoints_folder), step, {}, extra={FILE: table.to_bytes()})


def train(clock, rng, saved, first, last, total, every):
    for number in range(first, last + 1):
        if number % 13 == 1:
            clock.tell("epoch", step=number - 1, data_restarts=0, epoch=number // 13, segment=0, planned=64, plan_steps=13,
                       plan="")  # fmt: skip
        step(clock, number, rng, total)
        if number == 140:
            clips = [{"uid": 7, "path": f"<i>{i}</i>.mp4", "loss": 9.0 - i} for i in range(5)]
            clock.tell("spike", step=number, what="loss", bucket=BUCKETS[0][0], value=8.25, usual=0.5, limit=1.5,
                       skipped=False, clips=clips)  # fmt: skip
        if number == 100:
            reason = "packet is corrupt"
            clock.tell("failure", step=number, uid=255, copy=0, repeat_index=0, path="shots/012.mp4", reason=reason)
        if number % 13 == 0:
            failed = int(number == 104)
            clock.tell("epoch_end", step=number, epoch=number // 13 - 1, planned=64, trained=64 - failed,
                       failed=failed, skipped=0)  # fmt: skip
        if number % every == 0:
            measure(clock, number, total)
            save(clock, rng, saved, number, total)


def measure(clock, number, total):
    share = number / total
    by_time = {str(t): 0.3 + 0.6 * (1 - share) * (0.4 + t / 1200) for t in (100, 300, 500, 700, 900)}
    loss = sum(by_time.values()) / len(by_time)
    clock.tell("validation", 2.0, step=number, loss=loss, loss_by_time=by_time, clips=4, seconds=2.0)
    names = []
    for i in range(len(PROMPTS)):
        name = f"step-{number:09d}/{i:02}.{'png' if i == 3 else 'mp4'}"
        (path := clock.run.samples_folder / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(preview(i, round(0.25 + 0.75 * share, 1)))
        names.append(name)
    clock.tell("samples", 1.0, step=number, files=names, prompts=PROMPTS)


def save(clock, rng, saved, number, total):
    """Keep the last two; the newest is the best, as the loss only falls here."""
    folder = clock.run.checkpoints_folder / f"step-{number:09d}"
    folder.mkdir(exist_ok=True)
    saved.append(number)
    size = 8_412_330 + rng.randrange(1000)
    clock.tell("checkpoint", 0.4, step=number, name=folder.name, bytes=size, seconds=0.41)
    kept = sorted(set(saved))[-2:]
    best = f"the best by validation/loss ({0.3 + 0.5 * (1 - number / total):.6g})"
    reasons = {kept[-1]: ["the newest", best], kept[0]: ["among the last 2"]}
    gone = [
        s
        for s in sorted(set(saved))
        if s not in kept and clock.run.checkpoints_folder.joinpath(f"step-{s:09d}").is_dir()
    ]
    for old in gone:
        clock.run.checkpoints_folder.joinpath(f"step-{old:09d}").rmdir()
    clock.tell(
        "retention", step=number,
        kept=[{"step": s, "reasons": reasons[s]} for s in kept],
        deleted=[{"step": s, "reasons": ["not among the last 2"]} for s in gone],
    )  # fmt: skip
