"""How long `reelworks --help` and `reelworks new lora` take, beside a bare start of the same Python in the same run.

The promise is that help comes in under half a second, since a person who looks something up does not wait, and a recipe with
its estimates in under five, with a first line in one. Processor time tells the same on a machine that is busy otherwise.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

RUNS = 7
MODELS = ("wan", "flux-dev", "sdxl", "qwen-image", "z-image")


class Seconds(NamedTuple):
    """Times of a command until its first line and its end, and its processor time."""

    first_line: float
    end: float
    processor: float


def fastest(*arguments: str) -> Seconds:
    """Run Python several times; the slower runs measure what else the machine does."""
    runs = [once(*arguments) for _ in range(RUNS)]
    return Seconds(*(min(times) for times in zip(*runs, strict=True)))


def once(*arguments: str) -> Seconds:
    """Run Python."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    first = time.perf_counter() - began
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, arguments
    return Seconds(first, time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    bare, helped = fastest("-c", "pass"), fastest("-m", "reelworks", "--help")
    print(
        f"on {platform.machine()}, Python {platform.python_version()}: bare {bare.end:.3f} s, --help {helped.end:.3f} s"
    )
    new: dict[str, Seconds] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            path = str(Path(folder) / "made.toml")
            command = ("-m", "reelworks", "new", "lora", "--model", model, "--vram", "24", "--force", "-o", path)
            new[model] = fastest(*command)
            first, end, processor = new[model]
            print(f"new lora --model {model}: first line {first:.2f} s, end {end:.2f} s, processor {processor:.2f} s")
    told = {model: seconds._asdict() for model, seconds in new.items()}
    print(json.dumps({"bare_s": bare.end, "help_s": helped.end, "ratio": helped.end / bare.end, "new_lora_s": told}))
