"""What it costs that OpenMP's threads spin while they wait, on an idle machine and beside other busy processes.

`python -m benchmarks.busy --json` trains a small network of many parallel regions for some seconds in each of four
ways, every one in a process of its own: as the library waits by default and with `OMP_WAIT_POLICY=passive`, alone and
beside another training whose threads spin. Its last line tells `idle_cost`, the time of a step asleep over that
of a step spinning on the idle machine, and `busy_ratio`, the time spinning over that asleep on the busy one. Beside
another spinning training a step takes twice the time or twenty times, as the scheduler falls, so that trials differ.
`reelworks train` chooses between the two by the load average (`core.machine`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks._results import AT_START, keep
from reelworks.core import machine

RESULTS = Path(__file__).parent / "results" / "busy.json"
_STEPS = """
import sys, time, torch
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
network = torch.nn.TransformerEncoder(layer, 6)
optimizer = torch.optim.AdamW(network.parameters())
x = torch.randn(8, 96, 128)
def step():
    network(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(3):
    step()
began, steps = time.perf_counter(), 0
while time.perf_counter() - began < float(sys.argv[1]):
    step()
    steps += 1
print((time.perf_counter() - began) / steps)
"""
_UNTIL_BOTH_RUN_SECONDS = 5.0


def seconds_per_step(seconds: float, *, passive: bool, busy: bool) -> float:
    """Seconds of a step, measured for some seconds, alone or beside another training."""
    default = {k: v for k, v in os.environ.items() if k not in (*machine.WAIT_POLICY, "OMP_NUM_THREADS")}
    environment = default | ({"OMP_WAIT_POLICY": "passive"} if passive else {})
    command = [sys.executable, "-c", _STEPS, "3600"]
    beside = [subprocess.Popen(command, env=default, stdout=subprocess.DEVNULL)] if busy else []
    time.sleep(_UNTIL_BOTH_RUN_SECONDS if busy else 0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _STEPS, str(seconds)],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
    finally:
        for process in beside:
            process.kill()
            process.wait()
    return float(done.stdout)


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--trials", type=int, default=5, help="of each way; their mean counts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    ways = {f"{w}_{h}_ms": (w, h) for w in ("idle", "busy") for h in ("default", "passive")}
    trials: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.trials):
        for name, (where, how) in ways.items():
            seconds = seconds_per_step(args.seconds, passive=how == "passive", busy=where == "busy")
            trials[name].append(round(1000 * seconds, 1))
    seen: dict[str, Any] = {name: round(statistics.mean(values), 1) for name, values in trials.items()}
    seen["idle_cost"] = round(seen["idle_passive_ms"] / seen["idle_default_ms"], 2)
    seen["busy_ratio"] = round(seen["busy_default_ms"] / seen["busy_passive_ms"], 2)
    seen |= {"trials": trials, "cores": machine.cores(), **AT_START}
    for name, value in seen.items() if not args.json else ():
        print(f"{name:16} {value}")
    print(json.dumps(seen))
    if args.save:
        keep(RESULTS, seen)


if __name__ == "__main__":
    main()
