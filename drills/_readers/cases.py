"""Cases as files: a tiny network in the names of diffusers and of its release, and a LoRA file."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """One file to read, and what it is for; what a program made of it belongs to `out`."""

    folder: Path
    out: Path

    @property
    def about(self) -> dict[str, Any]:
        """Its network's class (`network`), part of the pipeline (`part`), `pipeline`, `convention` and `type`."""
        found: dict[str, Any] = json.loads((self.folder / "case.json").read_text(encoding="utf-8"))
        return found

    @property
    def config(self) -> dict[str, Any]:
        """The network's config as diffusers saves it."""
        found: dict[str, Any] = json.loads((self.folder / "network" / "config.json").read_text(encoding="utf-8"))
        return found

    @property
    def file(self) -> Path:
        """The LoRA file."""
        return self.folder / "lora.safetensors"

    def linear(self, names: str, prefix: str = "") -> dict[str, Tensor]:
        """Return the weights of linear layers by the names of "diffusers" or of the "release"; "wanted-" are those trained."""
        return load_file(self.folder / f"{prefix}{names}.safetensors")

    def compare_with(self, base: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
        """Give the weights before and after training by the program's own names, if it has others."""
        save_file({name: value.contiguous() for name, value in base.items()}, self.out / "base.safetensors")
        save_file({name: value.contiguous() for name, value in wanted.items()}, self.out / "wanted.safetensors")

    def network(self) -> Any:
        """Return the network in diffusers."""
        import diffusers

        return getattr(diffusers, self.about["network"]).from_pretrained(self.folder / "network")


class _Place(nn.Module):
    """A module of modules, by name or by number."""

    def __getitem__(self, number: int) -> nn.Module:
        return self.get_submodule(str(number))


def bare(weights: dict[str, Tensor]) -> nn.Module:
    """Return a module that is nothing but linear layers with these weights, at the places that their names tell."""
    root = _Place()
    for name, weight in weights.items():
        *path, last = name.removesuffix(".weight").split(".")
        parent: nn.Module = root
        for part in path:
            if not hasattr(parent, part):
                parent.add_module(part, _Place())
            parent = parent.get_submodule(part)
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        parent.add_module(last, layer)
    return root


class UnknownNetworkError(Exception):
    """This version of a program has no such network."""


class _Empty(ModuleType):
    """A module of which any name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def let_be_imported(*names: str) -> None:
    """Let programs import those of these packages that are not here, and which they need for other things than LoRA files."""
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError):
            missing.append(name)
    sys.meta_path.insert(0, _Finder(tuple(missing)))


def enter(package: str, folder: Path) -> None:
    """Let modules of a package be imported without what its own file imports first."""
    module = ModuleType(package)
    module.__path__ = [str(folder)]
    sys.modules[package] = module


def read_all(read: Callable[[Case], tuple[dict[str, Tensor], list[str]]]) -> None:
    """Read all cases below the folder of the command line with a function that returns the merged weights, and names not taken."""
    folder, out = map(Path, sys.argv[1:3])
    for path in sorted(folder.iterdir()):
        told: dict[str, Any] = {"untaken": [], "error": None, "absent": None}
        target = out / path.name
        target.mkdir(parents=True, exist_ok=True)
        try:
            with torch.no_grad():
                merged, told["untaken"] = read(Case(path, target))
            save_file({name: value.contiguous() for name, value in merged.items()}, target / "merged.safetensors")
        except UnknownNetworkError as error:
            told["absent"] = str(error)
        except Exception as error:
            told["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
            (target / "trace.txt").write_text(traceback.format_exc(), encoding="utf-8")
        (target / "told.json").write_text(json.dumps(told), encoding="utf-8")
