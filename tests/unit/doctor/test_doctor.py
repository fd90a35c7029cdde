"""`reelworks doctor` tells what a machine has, and each thing that is wrong with a remedy."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import sys
from pathlib import Path

import av
import places
import pytest
import second_device
import torch
from typer.testing import CliRunner

from reelworks.annexes.doctor import examine
from reelworks.commands.main import app
from reelworks.core import machine, storage, system
from reelworks.models.attention import attention_audit


@pytest.fixture(autouse=True)
def _kernels_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes longer than all the rest."""
    monkeypatch.setattr(examine, "_WIDTHS", (72,))
    monkeypatch.setattr(examine, "_TOKENS", 16)


def problems(folder: Path) -> list[str]:
    return [each.problem for each in examine.examine(folder).problems]


@pytest.mark.slow
def test_a_machine_is_told_and_left_as_it_was(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--output", str(tmp_path), "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == bool(found["problems"])
    assert found["facts"]["packages"]["torch"] == importlib.metadata.version("torch")
    assert found["facts"]["disk"]["locks"] == "yes"
    assert found["facts"]["kernels"]["heads of 72, masked"].startswith("right")
    assert not list(tmp_path.iterdir())
    assert str(Path.home()) not in CliRunner().invoke(app, ["doctor", "--output", str(Path.home() / "runs")]).stdout


@pytest.mark.parametrize("is_link", [False, True])
def test_no_path_names_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool) -> None:
    """What `doctor` tells is pasted into reports of faults; caches and temporary files lie at home, too."""
    home = tmp_path / "ottilie"
    (home / "tmp").mkdir(parents=True)
    if is_link:  # as on clusters, whose shell is in the folder itself
        places.link(tmp_path / "linked", home)
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path / "linked" if is_link else home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("TMPDIR", str(home / "tmp"))
    told = "\n".join(examine.lines(examine.examine(home / "runs")))
    assert all(part in told for part in ("~/runs", "~/.cache", "~/tmp"))
    assert "ottilie" not in told


def test_missing_encoders_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libx264", "hevc"})
    told = problems(tmp_path)
    assert any("no encoder libx264" in each for each in told)
    assert any("does not decode hevc" in each for each in told)


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    assert any(each.startswith("cache: ") and "cannot be written" in each for each in problems(tmp_path))


def test_a_folder_for_temporary_files_that_is_set_and_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    assert any(each.startswith("temporary files: ") and "cannot be written" in each for each in problems(tmp_path))


def test_folders_that_may_not_be_looked_at_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    barred, exists = tmp_path / "barred", Path.exists

    def asked(path: Path, **options: bool) -> bool:
        if path.is_relative_to(barred):
            raise PermissionError(errno.EACCES, "Permission denied")
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", asked)
    monkeypatch.setenv("TMPDIR", str(barred / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(barred / "cache"))
    told = "\n".join(problems(tmp_path))
    assert "cache: " in told
    assert "temporary files: " in told


def test_a_user_without_a_home_is_no_fault_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places.leave_without_home(monkeypatch, tmp_path)
    found = examine.examine(tmp_path)
    assert {"cache", "temporary files"} <= found.facts["disk"].keys()
    assert "pip check" not in "\n".join(examine.lines(found))


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    def full(call: str, _: Path) -> None:
        if call == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    with storage.guarded(full):
        told = problems(tmp_path)
    assert any("runs cannot be written" in each and "No space left" in each for each in told)


def test_a_disk_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(system, "_lock", refuse)
    assert examine.examine(tmp_path).facts["disk"]["locks"].startswith("no")


def test_packages_that_do_not_fit_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.metadata.version

    def version(name: str) -> str:
        if name == "peft":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1" if name == "diffusers" else known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    told = problems(tmp_path)
    assert "peft is not installed" in told
    assert any(each.startswith("diffusers 0.1 is installed, and >=") for each in told)


_FAILS = "echo 'could not communicate with the driver'; exit 9"
_UNUSED = "there is a GPU, and it is not used: "


@pytest.mark.skipif(system.WINDOWS, reason="a script stands for the driver's program")
@pytest.mark.parametrize(
    ("does", "has_files", "told"),
    [
        ("echo 'NVIDIA GeForce RTX 4090, 572.83'", False, [_UNUSED + "this torch is for the CPU"]),
        (_FAILS, True, ["nvidia-smi fails: could not communicate", _UNUSED]),
        ("exec /bin/sleep 9", False, ["nvidia-smi fails: "]),
        (_FAILS, False, []),
        ("echo 'No devices were found'; exit 6", False, []),
        ("exit 0", False, []),
    ],
    ids=["torch for the CPU", "broken driver", "hanging driver", "driver without a card", "no card", "none listed"],
)
def test_a_card_that_torch_cannot_use_is_told_and_none_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, has_files: bool, told: list[str]
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(examine, "_DRIVER_SECONDS", 0.5)
    monkeypatch.setattr(machine, "_GPU_FILES", (str(tmp_path),) if has_files else ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, None)
    found = examine.Diagnosis()
    facts = dict(examine._card(found))
    assert len(found.problems) == len(told)
    assert all(each.problem.startswith(start) and each.remedy for each, start in zip(found.problems, told, strict=True))
    if told == []:
        assert any(name.startswith("nvidia-smi") for name in facts)


def test_a_gpu_that_is_left_alone_as_asked_is_used_again_by_the_same_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_GPU_FILES", (str(tmp_path),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("REELWORKS_DEVICE", "cpu")
    found = examine.Diagnosis()
    assert list(examine._card(found))
    assert [each.remedy for each in found.problems] == ["unset REELWORKS_DEVICE"]


@pytest.mark.slow
def test_apples_gpu_is_told_if_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second_device.use_as_apples(monkeypatch)
    assert examine.examine(tmp_path).facts["card"]["card 0"] == "Apple's GPU, 17.2 GB of the machine's memory"
    assert not any("GPU" in each for each in problems(tmp_path))


def test_a_mac_is_told_why_its_cpu_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert any("it is not used: this torch is not built" in each for each in problems(tmp_path))


def test_a_card_of_amd_is_told_by_rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1.2")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert examine.examine(tmp_path).facts["card"]["torch is built for"] == "ROCm 7.1.2"


@pytest.mark.parametrize(
    ("card", "architectures", "fits"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_80", "sm_90"], True),
        ((12, 0), ["sm_80", "sm_90", "compute_90"], True),
        ((6, 1), ["sm_75", "sm_80", "sm_90"], False),
        ((12, 0), ["sm_80", "sm_90"], False),
        ((8, 0), ["sm_86"], False),
        ((10, 3), ["sm_100", "sm_120"], True),
    ],
)
def test_code_for_a_card_is_of_its_generation(card: tuple[int, int], architectures: list[str], fits: bool) -> None:
    assert examine._is_built_for(*card, architectures) is fits


def test_a_wrong_kernel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = attention_audit.ATTEND
    monkeypatch.setattr(attention_audit.audit, "__defaults__", (lambda *a, **k: attend(*a, **k) * 1.5,))
    assert any("is wrong" in each for each in problems(tmp_path))


def test_what_breaks_is_told_with_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(examine, "_card", broken)
    found = examine.examine(tmp_path)
    assert "libcudart.so.13" in found.problems[0].problem
    assert found.facts["video"]
