"""The files that start a training elsewhere: shell that a shell reads, YAML of the right kind, commands that exist."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from reelworks.commands.main import app
from reelworks.core import system

FOLDER = Path(__file__).parents[2] / "examples" / "launch"
SHELL = ("torchrun.sh", "slurm.sbatch")
DOCUMENTS = {
    "kubernetes-pytorchjob.yaml": ("kubeflow.org/v1", "PyTorchJob"),
    "kubernetes-jobset.yaml": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
}


def texts(value: Any) -> list[str]:
    """Return all texts in nested lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    return [text for one in value for text in texts(one)] if isinstance(value, list) else [str(value)]


def shell(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_each_file_is_one_that_is_checked_here() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {*SHELL, *DOCUMENTS, "skypilot.yaml"}


@pytest.mark.parametrize("name", SHELL)
def test_shell_is_read_by_a_shell(name: str) -> None:
    shell((FOLDER / name).read_text(encoding="utf-8"))


# As srun(1) of Slurm since 22.05: the cores of a task are those of its own option or variable, else one.
SRUN = """#!/usr/bin/env bash
cores=${SRUN_CPUS_PER_TASK:-1}
while [ "${1#-}" != "$1" ]; do
    case $1 in --cpus-per-task=*) cores=${1#*=} ;; esac
    shift
done
for rank in $(seq 0 $((SLURM_NTASKS - 1))); do
    CORES=$cores SLURM_PROCID=$rank SLURM_LOCALID=$((rank % SLURM_NTASKS_PER_NODE)) "$@" || code=$?
done
exit "${code:-0}"
"""


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("code", [0, 1, 75])
def test_slurm_gives_each_rank_its_cores_and_its_place_and_queues_one_again_that_saved(
    tmp_path: Path, code: int, given: bool
) -> None:
    """Slurm names the cores of a task only where they are asked for, and not where they come with the GPUs."""
    programs = {
        "srun": SRUN,
        # As of a job of many nodes: whoever stops to read after the first would end it.
        "scontrol": '#!/usr/bin/env bash\necho "$1" >>asked\nseq -f node-%g 0 99999\n',
        "reelworks": f'#!/usr/bin/env bash\necho "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $CORES $#" >>ranks\nexit {code}\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    script = FOLDER / "slurm.sbatch"
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\d+)$", script.read_text(encoding="utf-8"), re.MULTILINE))
    cores, tasks = asked["cpus-per-task"], int(asked["ntasks-per-node"])
    job = {"JOB_ID": "7", "JOB_NODELIST": "node-[0-1]", "NTASKS": str(tasks * int(asked["nodes"]))}
    job |= {"NTASKS_PER_NODE": str(tasks)} | ({"CPUS_PER_TASK": cores} if given else {})
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | {f"SLURM_{name}": value for name, value in job.items()}
    done = subprocess.run(["bash", str(script), "my recipe.toml"], env=environment, cwd=tmp_path, check=False)
    assert done.returncode == code
    ranks = (tmp_path / "ranks").read_text(encoding="utf-8").splitlines()
    world = job["NTASKS"]
    assert ranks == [f"{rank} {rank % tasks} {world} node-0 {cores if given else 1} 2" for rank in range(int(world))]
    assert ("requeue" in (tmp_path / "asked").read_text(encoding="utf-8")) == (code == 75)


# A training that says which signal has come.
TRAINING = """
import signal, sys, time
from pathlib import Path
for number in map(int, sys.argv[2:]):
    signal.signal(number, lambda number, _: sys.exit(Path("came").write_text(str(number))))
Path("begun").touch()
time.sleep(200)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", system.STOPS)
def test_torchrun_passes_each_signal_on_that_a_training_saves_at(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "reelworks").mkdir()
    (tmp_path / "reelworks" / "__init__.py").touch()
    (tmp_path / "reelworks" / "__main__.py").write_text(TRAINING, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        head = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"HEAD": head, "NNODES": "1", "GPUS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", str(FOLDER / "torchrun.sh"), *(str(int(each)) for each in system.STOPS)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as torchrun:
        try:
            until = time.monotonic() + 100
            while not (tmp_path / "begun").exists():
                assert time.monotonic() < until
                time.sleep(0.05)
            torchrun.send_signal(number)
            torchrun.wait(100)
        finally:
            torchrun.kill()
    assert (tmp_path / "came").read_text(encoding="utf-8") == str(int(number))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_of_their_kind(name: str) -> None:
    document = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert (document["apiVersion"], document["kind"]) == DOCUMENTS[name]
    assert {"torchrun", "reelworks", "train"} <= set(texts(document))


def tables(value: Any) -> list[dict[str, Any]]:
    """Return all dicts in nested lists and dicts."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] * isinstance(value, dict) + [one for each in inner for one in tables(each)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_pod_is_left_the_time_for_a_save(name: str) -> None:
    """torchrun would end a training 30 seconds after a signal, whatever time Kubernetes leaves the pod."""
    found = tables(yaml.safe_load((FOLDER / name).read_text(encoding="utf-8")))
    (grace,) = [one["terminationGracePeriodSeconds"] for one in found if "terminationGracePeriodSeconds" in one]
    (left,) = [int(one["value"]) for one in found if one.get("name") == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    assert 30 < left < grace


def test_an_elastic_job_has_work_for_all_machines_that_may_join() -> None:
    job = yaml.safe_load((FOLDER / "kubernetes-pytorchjob.yaml").read_text(encoding="utf-8"))["spec"]
    worker = job["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    gpus = job["elasticPolicy"]["maxReplicas"] * worker["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--set=train.micro_batches_per_step={gpus}" in worker["command"]


def test_the_task_of_skypilot_holds_scripts_that_a_shell_reads() -> None:
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text(encoding="utf-8"))
    for key in ("setup", "run"):
        shell(task[key])
    assert task["resources"]["use_spot"]
    assert "--output ~/" in task["run"]  # rented machines have users who may not write to /


def test_what_they_run_exists() -> None:
    """A command that was renamed would show on the cluster only."""
    commands = {command.name for command in app.registered_commands}
    for file in FOLDER.iterdir():
        told = "\n".join(
            line for line in file.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
        )
        named = re.findall(r"\breelworks (?!\[)([a-z-]+)", told)
        assert set(named) <= commands, file.name
        assert "train" in told
