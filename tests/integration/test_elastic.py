"""Workers come and go within an epoch, under torchrun: training goes on from the last commit, and no clip is lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import children
import psutil
import pytest

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file

pytestmark = pytest.mark.slow
PATIENCE_SECONDS = 150
# With the agents' own store, torchrun does not tell machines that join later where rank 0 is (seen in torch 2.13).
TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Cluster:
    """Machines of one worker each, which are torchrun's agents here."""

    def __init__(self, recipe: Path, run: Path, log: Path) -> None:
        self.recipe, self.run, self.log = recipe, run, log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        self.machines: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "elastic"]
        elastic = ["--nnodes", "1:4", "--nproc-per-node", "1", "--max-restarts", "9"]
        quick = ["--rdzv-conf", "last_call_timeout=5,join_timeout=120"]
        command = [sys.executable, "-m", "torch.distributed.run", *elastic, *rendezvous, *quick]
        with self.log.open("ab") as out:
            self.machines.append(
                subprocess.Popen(
                    [*command, "-m", "reelworks", "train", str(self.recipe), "--debug"],
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **TORCHRUN},
                )
            )

    def wait_for_head(self) -> None:
        """Wait until the first machine hosts the rendezvous, as it must not be lost."""
        host, port = self.endpoint.split(":")
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return
            time.sleep(0.1)

    def lose(self) -> None:
        """Kill the last machine with all that runs on it, as a power cut would."""
        machine = self.machines.pop()
        processes = [psutil.Process(machine.pid), *psutil.Process(machine.pid).children(recursive=True)]
        for process in processes:
            process.kill()
        machine.wait()

    def world_after(self, steps: int, world: int) -> dict:
        """Wait until a start with so many workers has trained some steps; returns its first step's event."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            trained, current = [], 0
            for event in events.read(RunFolder(self.run).events_file, "start", "step"):
                if event["kind"] == "start":
                    trained, current = [], event["world_size"]
                else:
                    trained.append(event)
            if current == world and len(trained) >= steps:
                return trained[0]
            time.sleep(0.2)
        raise TimeoutError(f"no {steps} steps with {world} workers: {self.log.read_text(encoding='utf-8')[-6000:]}")

    def end(self) -> None:
        for machine in self.machines:
            if machine.poll() is None:
                for process in [*psutil.Process(machine.pid).children(recursive=True), machine]:
                    process.kill()
                machine.wait()


@pytest.fixture
def cluster(tiny, tmp_path) -> Iterator[Cluster]:
    recipe = tiny(
        bucket=[{"resolution": "32px", "num_frames": [1, 5], "batch_size": [2, 1]}],
        train={"max_epochs": 1, "micro_batches_per_step": 4, "same_bucket_run": 1},
        validation={"split": 0.0},
        checkpoints={"every_steps": 2},
    )
    recipe["dataset"] = [{**recipe["dataset"][0], "repeats": 30}]
    recipe["train"].pop("max_steps")
    file = tmp_path / "recipe.toml"
    file.write_text(recipe_file.dump(recipe_file.parse(recipe)), encoding="utf-8")
    made = Cluster(file, tmp_path / "run", tmp_path / "log")
    yield made
    made.end()


def test_workers_are_lost_and_gained_within_an_epoch(cluster, tmp_path):
    """4 → 3 → 2 → 4; each clip of the epoch is trained once."""
    cluster.add()
    cluster.wait_for_head()
    for _ in range(3):
        cluster.add()
    cluster.world_after(3, world=4)
    for world in (3, 2):
        lost = time.time()
        cluster.lose()
        first = cluster.world_after(3, world)
        print(f"{world + 1} to {world} workers: first step after {first['time'] - lost:.1f} s")
    for _ in range(2):
        cluster.add()
    cluster.world_after(2, world=4)
    for machine in cluster.machines:
        assert machine.wait(PATIENCE_SECONDS) == 0, cluster.log.read_text(encoding="utf-8")[-6000:]

    run = RunFolder(tmp_path / "run")
    assert {e["world_size"] for e in events.read(run.events_file, "start")} >= {2, 3, 4}
    (account,) = events.timeline(run.events_file, "epoch_end")
    assert account["planned"] == account["trained"]
    # A step after the last commit is trained again, on the weights of the commit, and with the same clips.
    steps: dict[int, set[tuple[int, int]]] = {}
    for line in children.debug_lines(run.path):
        steps.setdefault(line["step"], set()).update((clip["uid"], clip["copy"]) for clip in line["trained"])
    trained = Counter(clip for clips in steps.values() for clip in clips)
    assert set(trained.values()) == {1}
    assert len(trained) == account["planned"] > 300
    losses = [event["loss"] for event in events.timeline(run.events_file, "step")]
    assert len(losses) == len(steps) == max(steps)
