"""How soon a command answers: `python -m benchmarks.startup`.

Measures a bare start of the same Python, `--help`, `new lora` for published models until its first line and its end, and
`train` of a LoRA on 20 small pictures and a tiny network of diffusers, until its first step. Each is run several times,
and the fastest counts, since the slower ones measure what else the machine does; processor time stands beside.

The promise is that help comes in under half a second, since a person who looks something up does not wait, a recipe with its
estimates in under five, with a first line in one, and the first step of the tiny LoRA in six, on a quiet machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks._results import AT_START, keep

RESULTS = Path(__file__).parent / "results" / "startup.json"
MODELS = ("wan", "flux-dev", "sdxl", "qwen-image", "z-image", "ltx-2-sound", "flux-tiny")


class Seconds(NamedTuple):
    """Times of a command until its first line, until a line that it waits for, and its processor time."""

    first_line: float
    reached: float
    processor: float


def fastest(runs: int, *arguments: str, until: str | None = None, folder: str | None = None) -> Seconds:
    """Run Python several times."""
    found = [once(*arguments, until=until, folder=folder) for _ in range(runs)]
    return Seconds(*(min(times) for times in zip(*found, strict=True)))


def once(*arguments: str, until: str | None = None, folder: str | None = None) -> Seconds:
    """Run Python until a line that begins with a text, at whose place it is ended, or to its end."""
    # Compiled modules are kept, as they are where people run it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, cwd=folder, env=environment, encoding="utf-8"
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    first = time.perf_counter() - began
    while line and (until is None or not line.startswith(until)):
        line = process.stdout.readline()
    reached = time.perf_counter() - began
    assert until is None or line, f"{arguments} did not come to a line {until!r}"
    if until is not None:
        process.kill()
    _, status, usage = os.wait4(process.pid, 0)
    assert until is not None or status == 0, arguments
    return Seconds(first, reached, usage.ru_utime + usage.ru_stime)


def measure(runs: int) -> dict[str, object]:
    """Return all figures, and print them meanwhile."""
    bare, helped = fastest(runs, "-c", "pass"), fastest(runs, "-m", "reelworks", "--help")
    print(
        f"on {platform.machine()}, Python {platform.python_version()}, load {AT_START['load_average']}: "
        f"bare {bare.reached:.3f} s, --help {helped.reached:.3f} s"
    )
    new: dict[str, Seconds] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            command = ("-m", "reelworks", "new", "lora", "--model", model, "--vram", "48", "--force", "-o", "made.toml")
            new[model] = fastest(runs, *command, folder=folder)
            first, end, processor = new[model]
            print(f"new lora --model {model}: first line {first:.2f} s, end {end:.2f} s, processor {processor:.2f} s")
        trained = [train(Path(folder, str(run))) for run in range(runs)]
    first, step, processor = (min(times) for times in zip(*trained, strict=True))
    print(f"train: first line {first:.2f} s, first step {step:.2f} s, processor {processor:.2f} s")
    return {
        "bare_s": bare.reached,
        "help_s": helped.reached,
        "ratio": helped.reached / bare.reached,
        "new_first_line_s": max(each.first_line for each in new.values()),
        "new_s": max(each.reached for each in new.values()),
        "new_processor_s": max(each.processor for each in new.values()),
        "new_lora_s": {model: each._asdict() for model, each in new.items()},
        "train_first_line_s": first,
        "train_first_step_s": step,
        "train_processor_s": processor,
    }


def train(folder: Path) -> Seconds:
    """Write pictures and a recipe into a new folder, and train until the first step."""
    from PIL import Image

    (folder / "pictures").mkdir(parents=True)
    for number in range(20):
        file = folder / "pictures" / f"{number:02}.png"
        Image.effect_noise((128, 96 if number % 3 else 128), 64).convert("RGB").save(file)
        file.with_suffix(".txt").write_text("a picture of noise", encoding="utf-8")
    new = ("-m", "reelworks", "new", "lora", "--data", "pictures", "--model", "flux-tiny", "-o", "noise.toml")
    once(*new, folder=str(folder))
    return once("-m", "reelworks", "train", "noise.toml", until="step 1/", folder=str(folder))


def main() -> None:
    """Measure, and print or save the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    figures = measure(options.runs)
    if options.save:
        keep(RESULTS, figures)
    print(json.dumps(figures | AT_START))


if __name__ == "__main__":
    main()
