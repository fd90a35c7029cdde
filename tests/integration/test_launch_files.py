"""The files that start a training elsewhere: shell that a shell reads, YAML of the right kind, commands that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from reelworks.commands.main import app

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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_of_their_kind(name: str) -> None:
    document = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert (document["apiVersion"], document["kind"]) == DOCUMENTS[name]
    assert {"torchrun", "reelworks", "train"} <= set(texts(document))


def test_the_task_of_skypilot_holds_scripts_that_a_shell_reads() -> None:
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text(encoding="utf-8"))
    for key in ("setup", "run"):
        shell(task[key])
    assert task["resources"]["use_spot"]


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
