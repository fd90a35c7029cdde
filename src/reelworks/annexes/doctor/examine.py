"""Look at each part of a machine: what it has is told, and what is wrong gets a remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from reelworks.core import device_memory, machine, system, units, user_files, version
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import disk_space

if TYPE_CHECKING:
    from torch import Tensor

_LOW_BYTES = 20 << 30  # a base of some billions of parameters, its stored latents and some checkpoints
_LOW_MEMORY = 8 << 30
_LOW_FILES = 1024  # each worker, shard and map of a column holds some open
_ENCODERS = {"libx264": "previews and clips of `generate` as MP4", "ffv1": "videos without loss"}
_DECODERS = ("h264", "hevc", "libdav1d", "vp9", "prores", "mjpeg")
_DRIVER_SECONDS = 20.0  # in which a driver's program answers
_HEADS, _WIDTHS, _TOKENS = 4, (64, 72, 128), 256


@dataclass(frozen=True)
class MachineProblem:
    """Something that is wrong with a machine.

    Attributes:
        problem: What is wrong, and what follows.
        remedy: What to do about it.
    """

    problem: str
    remedy: str


@dataclass
class Diagnosis:
    """Facts about a machine, to be pasted into a report of a fault.

    Attributes:
        facts: Of each part of the machine, what it has by name.
        problems: What is wrong.
    """

    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[MachineProblem] = field(default_factory=list)

    def ail(self, problem: str, remedy: str) -> None:
        """Note a problem."""
        self.problems.append(MachineProblem(problem, remedy))


def examine(folder: Path) -> Diagnosis:
    """Look at the machine, and at the disk of a folder for runs; a part that cannot be looked at is a problem of its own."""
    found = Diagnosis()
    parts: dict[str, Callable[[Diagnosis], Iterator[tuple[str, object]]]] = {
        "program": _program,
        "packages": _packages,
        "machine": _machine,
        "card": _card,
        "kernels": _kernels,
        "video": _video,
        "disk": lambda diagnosis: _disk(diagnosis, folder),
    }
    for name, look in parts.items():
        facts = found.facts.setdefault(name, {})
        try:
            for key, value in look(found):
                facts[key] = str(value)
        except Exception as error:  # whatever is broken here, the rest is told
            found.ail(f"{name}: {type(error).__name__}: {error}", "see whether the packages above are whole: pip check")
    return found


def _program(_: Diagnosis) -> Iterator[tuple[str, object]]:
    yield "reelworks", version.__version__
    yield "python", platform.python_version()
    yield "system", platform.platform()


def _packages(found: Diagnosis) -> Iterator[tuple[str, object]]:
    from packaging.requirements import Requirement

    for line in importlib.metadata.requires("reelworks") or ():
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = importlib.metadata.version(needed.name)
        except importlib.metadata.PackageNotFoundError:
            found.ail(f"{needed.name} is not installed", f'pip install "{needed.name}{needed.specifier}"')
            continue
        yield needed.name, installed
        if not needed.specifier.contains(installed, prereleases=True):
            problem = f"{needed.name} {installed} is installed, and {needed.specifier} is needed"
            found.ail(problem, f'pip install "{needed.name}{needed.specifier}"')


def _machine(found: Diagnosis) -> Iterator[tuple[str, object]]:
    memory = psutil.virtual_memory()
    usable = machine.memory_bytes()
    yield "cores", machine.cores()
    yield "memory", f"{units.size(usable)}, {units.size(memory.available)} available"
    yield "load", f"{system.load_average():.1f}"
    if usable < _LOW_MEMORY:
        found.ail(
            f"{units.size(usable)} of memory: text encoders of most models do not fit",
            "use stored texts that were encoded elsewhere, or a model with a small text encoder",
        )
    limit = system.open_files()
    yield "open files", "no limit" if limit is None else limit
    if limit is not None and limit < _LOW_FILES:
        found.ail(f"at most {limit} files may be open", f"ulimit -n {_LOW_FILES * 4}, before the command")


def _card(found: Diagnosis) -> Iterator[tuple[str, object]]:
    import torch

    yield "torch is built for", machine.torch_target()
    told = dict(_drivers(found))
    yield from told.items()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(cards):
        card = torch.cuda.get_device_properties(number)
        architecture = getattr(card, "gcnArchName", None) if torch.version.hip else f"{card.major}.{card.minor}"
        yield f"card {number}", f"{card.name}, {units.size(card.total_memory)}, {architecture}"
        built_for = torch.cuda.get_arch_list()
        if torch.version.cuda and built_for and not _is_built_for(card.major, card.minor, built_for):
            found.ail(
                f"this torch has no code for {card.name} (compute capability {architecture}), only for {', '.join(built_for)}",
                "install the torch of another CUDA version, by https://pytorch.org/get-started",
            )
    if cards:
        return
    device = machine.default_device()
    if (memory := device_memory.total_bytes(device)) is not None:
        yield "card 0", f"Apple's GPU, {units.size(memory)} of the machine's memory"
        return
    yield "card", "none that torch can use: trainings run on the CPU"
    if reason := machine.why_cpu() or (told.get("nvidia-smi") and f"this torch is for {machine.torch_target()}"):
        reasons = "; ".join(str(each.message).splitlines()[0] for each in said)
        remedy = (
            "install a torch for this card and driver, by https://pytorch.org/get-started, or a newer driver or macOS"
        )
        remedy = "unset REELWORKS_DEVICE" if "REELWORKS_DEVICE" in reason else remedy
        found.ail(f"there is a GPU, and it is not used: {reasons or reason}", remedy)


def _drivers(found: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yield what the programs of drivers tell of their cards.

    One that does not answer is a problem, and one that fails where there is a card: many machines without have it.
    """
    for program, arguments in (
        ("nvidia-smi", ("--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader")),
        ("rocm-smi", ("--showproductname", "--showdriverversion", "--csv")),
    ):
        if shutil.which(program) is None:
            continue
        try:
            told = subprocess.run([program, *arguments], capture_output=True, timeout=_DRIVER_SECONDS, check=False)
            text = " · ".join((told.stdout + told.stderr).decode(errors="replace").splitlines())
        except (OSError, subprocess.TimeoutExpired) as error:
            told, text = None, str(error)
        if told is not None and told.returncode == 0:
            yield program, text
        elif told is not None and not machine.has_gpu():
            yield f"{program} fails", text
        else:
            found.ail(f"{program} fails: {text}", "install the driver of the card again, and restart the machine")


def _is_built_for(major: int, minor: int, architectures: list[str]) -> bool:
    """Whether code for a card is there: of its generation, or to be translated by the driver (compute_NN)."""
    for name in architectures:
        kind, _, digits = name.partition("_")
        number = int("".join(sign for sign in digits if sign.isdecimal()) or 0)
        if (number // 10 == major and number % 10 <= minor) or (kind == "compute" and number <= major * 10 + minor):
            return True
    return False


def _kernels(found: Diagnosis) -> Iterator[tuple[str, object]]:
    import torch

    from reelworks.models.attention.attention_audit import check_attention

    device = machine.default_device()
    for width, masked in product(_WIDTHS, (False, True)):
        query, key, value = (
            torch.randn(1, _HEADS, _TOKENS, width, dtype=torch.bfloat16, device=device).requires_grad_()
            for _ in range(3)
        )
        mask = (torch.arange(_TOKENS, device=device) < _TOKENS // 2)[None, None, None] if masked else None

        def step(query: Tensor = query, key: Tensor = key, value: Tensor = value, mask: Tensor | None = mask) -> None:
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
            attended.float().square().mean().backward()  # type: ignore[no-untyped-call]

        report = check_attention(step)
        name = f"heads of {width}{', masked' * masked}"
        yield name, "wrong" if report.faults else f"right, at most {report.worst:.1%} off"
        for fault in report.faults:
            instead = f"; {fault.instead} is right" if fault.instead else ""
            found.ail(f"{fault}{instead}", "`train` replaces it; elsewhere, install another torch")


def _video(found: Diagnosis) -> Iterator[tuple[str, object]]:
    import av

    yield "libraries", ", ".join(f"{name} {'.'.join(map(str, number))}" for name, number in av.library_versions.items())
    missing = [name for name in _ENCODERS if name not in av.codecs_available]
    yield "encoders", ", ".join(name for name in _ENCODERS if name not in missing) or "none"
    yield "decoders", ", ".join(name for name in _DECODERS if name in av.codecs_available) or "none"
    lacking = [name for name in _DECODERS if name not in av.codecs_available]
    remedy = "pip install --force-reinstall av: its wheels bring FFmpeg with them"
    for name in missing:
        found.ail(f"FFmpeg has no encoder {name}, for {_ENCODERS[name]}", remedy)
    if lacking:
        found.ail(f"FFmpeg does not decode {', '.join(lacking)}", remedy)


def _disk(found: Diagnosis, folder: Path) -> Iterator[tuple[str, object]]:
    yield "folder", _named(folder)
    try:
        mount = disk_space.probe(folder)
        yield "free", units.size(mount.free_bytes)
        yield "locks", "yes" if mount.locks else "no: a second training in one folder is noticed by its heartbeat alone"
        if mount.free_bytes < _LOW_BYTES:
            found.ail(
                f"{_named(folder)} has {units.size(mount.free_bytes)} left",
                "free disk space, or give runs another --output",
            )
    except UserError as error:
        found.ail(f"runs cannot be written to {_named(folder)}: {error.problem}", str(error.remedy))
    # What is set and cannot be used is told, where `tempfile` looks for another folder by itself.
    given = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")
    for name, place in (("cache", user_files.cache_folder()), ("temporary files", Path(given))):
        try:
            there = next(each for each in (place, *place.parents) if name != "cache" or each.exists())
            with tempfile.TemporaryFile(dir=there, buffering=0) as file:
                file.write(bytes(1 << 16))
            yield name, f"{_named(place)}, {units.size(shutil.disk_usage(there).free)} free"
        except OSError as error:
            what = "kernels are audited again at each start" if name == "cache" else "scans and exports may fail"
            found.ail(
                f"{name}: {_named(place)} cannot be written ({error.strerror or error}): {what}",
                "correct its permissions or free space, or set XDG_CACHE_HOME or TMPDIR",
            )


def _named(path: Path) -> str:
    """Return a path without the name of its user, which a report of a fault need not tell."""
    # Not by `Path`, which fails without a home.
    home, real = Path(os.path.expanduser("~")).resolve(), path.resolve()  # noqa: PTH111
    return str(Path("~") / real.relative_to(home)) if real.is_relative_to(home) else str(path)


def lines(found: Diagnosis) -> Iterator[str]:
    """Yield what was found as lines to paste."""
    for name, facts in found.facts.items():
        if facts:
            yield name
            yield from (f"  {key:<20} {value}" for key, value in facts.items())
    yield ""
    yield f"{units.plural(len(found.problems), 'problem')}{':' if found.problems else ''}"
    for each in found.problems:
        yield f"- {each.problem}"
        yield f"  remedy: {each.remedy}"
