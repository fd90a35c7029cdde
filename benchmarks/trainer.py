"""What the training loop costs beside a bare loop in PyTorch: `python -m benchmarks.trainer --json`.

Both train the same small network on the same pictures in memory, in one process with one thread, and take turns: some
steps of the one, as many of the other. Ours is `reelworks train` whole, with reading ahead, draws by clip, events,
records of clips, TensorBoard and the average of the weights, and the pictures' decoder replaced by memory. The bare loop
picks batches of frames from memory, encodes them, draws noise and timesteps, and updates the weights and their average.

`overhead_cpu_ms` is the processor time that a step of ours takes on top, all threads included: the median over the
rounds of their differences. `wall_ratio` is that of the wall times. With `--profile`, the functions in which our steps
spend their time are printed. Turns are short, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import pstats
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import _pictures
from benchmarks._results import AT_START, keep
from reelworks.core import log
from reelworks.models.api import DenoiserInputs
from reelworks.training.assembly import build
from reelworks.training.loop.request import TrainRequest
from reelworks.training.loop.trainer import run
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

RESULTS = Path(__file__).parent / "results" / "trainer.json"
PICTURES = 600
BATCH = 2
EPOCH = PICTURES // BATCH  # steps; pictures are decoded in the first, which is not counted
TURN = 10  # steps of each way before the other one follows


def bare_loop(recipe: Recipe) -> Iterator[float]:
    """Take an optimizer step for each value asked for, which is its loss."""
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    denoiser, encoder = build.denoiser(recipe, cpu), build.encoder(recipe, cpu)
    module, autoencoder = denoiser.module, encoder.autoencoder
    batches = [torch.randint(0, 256, (BATCH, 1, *size, 3), dtype=torch.uint8) for size in _pictures.SIZES]
    texts = [encoder.text_encoder.encode([f"picture number {i}"] * BATCH) for i in range(len(batches))]
    average = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)  # as ours does
    ones = torch.ones(BATCH)
    for step in iter(int, 1):
        frames, text = batches[step % len(batches)], texts[step % len(batches)]
        latent = autoencoder.encode((frames.float() / 127.5 - 1).permute(0, 4, 1, 2, 3))
        noise, share = torch.randn_like(latent), torch.rand(BATCH)
        noised = (1 - share.view(-1, 1, 1, 1, 1)) * latent + share.view(-1, 1, 1, 1, 1) * noise
        inputs = _inputs(noised, 1000 * share, text, ones)
        loss = torch.nn.functional.mse_loss(denoiser.predict(inputs)[:, : latent.shape[1]], latent - noise)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(average, list(module.parameters()), 1e-4)
        yield loss.item()


def _inputs(latent: Tensor, time: Tensor, text: Any, ones: Tensor) -> DenoiserInputs:
    height, width = (8.0 * size for size in latent.shape[3:])
    return DenoiserInputs(
        latent=latent,
        time=time,
        text=text.tokens,
        text_mask=text.mask,
        pooled=text.pooled,
        guidance=ones,
        frame_mask=torch.ones(len(latent), latent.shape[2], dtype=torch.bool),
        fps=24 * ones,
        height=height * ones,
        width=width * ones,
        crop=torch.zeros(len(latent), 4),
        drop_text=torch.zeros(len(latent), dtype=torch.bool),
    )


@dataclass
class Turns(logging.Handler):
    """Measure our steps by their events, and after every few take as many of the bare loop."""

    bare: Iterator[float]
    steps: int
    warm_up: int
    profile: cProfile.Profile | None = None
    ours: list[tuple[float, float]] = field(default_factory=list)
    others: list[tuple[float, float]] = field(default_factory=list)
    _began: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        super().__init__(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        """Count an event of a step."""
        if record.__dict__["kind"] != "step":
            return
        done = record.__dict__["fields"]["step"] - self.warm_up
        if done < 0 or done % self.steps:
            return
        if self.profile is not None:
            self.profile.disable()
        if done:
            self.ours.append(_since(self._began))
        if done or not self.others:
            self.others.append(self._bare_steps())
        if not done:
            self.others.clear()  # it was to warm up, too
        self._began = _now()
        if self.profile is not None:
            self.profile.enable()

    def _bare_steps(self) -> tuple[float, float]:
        began = _now()
        for _ in range(self.steps):
            next(self.bare)
        return _since(began)

    __hash__ = logging.Handler.__hash__


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _since(began: tuple[float, float]) -> tuple[float, float]:
    cpu, wall = _now()
    return cpu - began[0], wall - began[1]


def measure(rounds: int, steps: int, profile: cProfile.Profile | None) -> dict[str, Any]:
    """Return the figures, from some rounds of some steps."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, _pictures.in_memory():
        _pictures.write(Path(folder) / "pictures", PICTURES)
        recipe = recipe_file.parse(_pictures.recipe(Path(folder), rounds * steps + EPOCH, batch_size=BATCH))
        turns = Turns(bare_loop(recipe), TURN, EPOCH, profile)
        log.event_logger.addHandler(turns)
        log.event_logger.setLevel(logging.DEBUG)
        try:
            run(recipe, TrainRequest())
            if profile is not None:
                profile.disable()
        finally:
            log.event_logger.removeHandler(turns)
    ours, bare = (_per_step(way, steps // TURN) for way in (turns.ours, turns.others))
    differences = [a[0] - b[0] for a, b in zip(ours, bare, strict=True)]
    return {
        "bare_cpu_ms": round(statistics.median(cpu for cpu, _ in bare), 2),
        "ours_cpu_ms": round(statistics.median(cpu for cpu, _ in ours), 2),
        "overhead_cpu_ms": round(statistics.median(differences), 2),
        "wall_ratio": round(statistics.median(a[1] / b[1] for a, b in zip(ours, bare, strict=True)), 2),
        "overhead_cpu_ms_of_rounds": [round(each, 2) for each in differences],
        "rounds": rounds,
        "steps": steps,
        **AT_START,
    }


def _per_step(turns: list[tuple[float, float]], of_round: int) -> list[tuple[float, float]]:
    """Return milliseconds of a step, of the processor and on the clock, of rounds of so many turns."""
    rounds = [turns[i : i + of_round] for i in range(0, len(turns), of_round)]
    scale = 1000 / (TURN * of_round)
    return [(scale * sum(cpu for cpu, _ in each), scale * sum(wall for _, wall in each)) for each in rounds]


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=EPOCH, help=f"of each round and way, a multiple of {TURN}")
    parser.add_argument("--profile", metavar="KEY", help="print our functions by tottime or cumtime")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    figures = measure(options.rounds, options.steps, profile)
    if profile is not None:
        pstats.Stats(profile).sort_stats(options.profile).print_stats(70)
    if options.save:
        keep(RESULTS, figures)
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
