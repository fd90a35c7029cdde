"""Models and shapes that passed the audit before, on this machine: a start does not run it again for the same ones.

The audit's result depends on nothing but what is in the key: the layers with their settings, dtypes and shapes, the contract, the
inputs' layouts, and the code. A model with hooks, or with functions of its own, has no key and is audited at each start.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reelworks.core import user_files
from reelworks.models.precision import tensors
from reelworks.models.precision.boundary import InputsT, Predictor
from reelworks.models.precision.repeats import layout

_PROGRAM = Path(__file__).parents[2]
_MOST_KEPT = 1000
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_HOOKS = "_hooks"
_OF_LAYERS = ("_parameters", "_buffers", "_modules")


class _CannotTell(Exception):  # noqa: N818
    """A setting is a function that was made while the program ran, whose behaviour nothing names."""


def find(key: str | None) -> str | None:
    """Return what was noted of a model that passed, or None if none did."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return None if key is None else (_folder() / key).read_text(encoding="utf-8")
    return None


def note(key: str | None, text: str = "") -> None:
    """Remember that a model passed; a folder that cannot be written to costs only time."""
    if key is None:
        return
    with contextlib.suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True)
        (_folder() / key).write_text(text, encoding="utf-8")
        oldest = sorted(_folder().iterdir(), key=lambda file: file.stat().st_mtime)[:-_MOST_KEPT]
        for file in oldest:
            file.unlink(missing_ok=True)


def key_of(
    denoiser: Predictor[InputsT],
    examples: Iterable[InputsT],
    *,
    sharded: bool,
    units: Sequence[nn.Module],
    about: str = "",
) -> str | None:
    """Return the key of an audit with these arguments, or None if its result may depend on more.

    `about` is what else the result depends on, such as a GPU.
    """
    root = denoiser.module
    if any(_is_changed(module) for module in root.modules()):
        return None
    numbers = {id(unit) for unit in units} if sharded else set()
    try:
        lines = [repr(line) for line in _described(root, numbers)]
        others = (type(denoiser), _settings(denoiser), sharded, torch.__version__, sys.version, about)
    except _CannotTell:
        return None
    digest = hashlib.sha256("\n".join([*lines, repr(others)]).encode())
    for example in examples:
        digest.update(repr(layout(tensors.named(example))).encode())
    digest.update("\n".join([_program(), *map(_version, _code(root, denoiser))]).encode())
    return digest.hexdigest()


def _described(root: nn.Module, units: set[int]) -> Iterator[object]:
    """Yield what the forward passes of layers depend on, but for numbers."""
    for path, module in root.named_modules():
        yield path, type(module), _settings(module), id(module) in units
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            yield name, layout(tensor), tensor.requires_grad, type(tensor)


def _settings(holder: object, within: tuple[int, ...] = ()) -> list[tuple[str, str]]:
    """Return the attributes of an object as text, by name, and those of the objects that it holds; layers are told by type."""
    # Hooks have numbers of this process as keys.
    named = (
        (name, list((value or {}).values()) if name.endswith(_HOOKS) else value)
        for name, value in vars(holder).items()
        if name not in _OF_LAYERS
    )
    return sorted((name, _text(value, (*within, id(holder)))) for name, value in named)


def _text(value: Any, within: tuple[int, ...]) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return repr(layout(value))
    if isinstance(value, Mapping):
        return repr([(repr(key), _text(each, within)) for key, each in value.items()])
    if isinstance(value, (list, tuple, set, frozenset)):
        return repr([_text(each, within) for each in value])
    if isinstance(value, partial):
        return _text((value.func, value.args, value.keywords), within)
    if (name := getattr(value, "__qualname__", None)) is not None:
        if "<" in name:
            raise _CannotTell
        return f"{value.__module__}.{name}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    is_open = hasattr(value, "__dict__") and id(value) not in within and not isinstance(value, nn.Module)
    return f"{name} {_settings(value, within)}" if is_open else name


def _is_changed(module: nn.Module) -> bool:
    """Whether a layer has hooks other than functions of this program, or a method that its class does not have."""
    hooks = (hook for name, each in vars(module).items() if name.endswith(_HOOKS) for hook in (each or {}).values())
    methods = (callable(value) and hasattr(type(module), name) for name, value in vars(module).items())
    return not all(map(_is_of_program, hooks)) or any(methods)


def _is_of_program(hook: Any) -> bool:
    """Whether a hook does what the code of this program says, and nothing else."""
    name = getattr(hook, "__qualname__", "<")
    return "<" not in name and not hasattr(hook, "__self__") and hook.__module__.startswith("reelworks.")


def _code(root: nn.Module, denoiser: object) -> list[str]:
    """Return the files of the layers' classes."""
    kinds = {kind.__module__ for module in (*root.modules(), denoiser) for kind in type(module).__mro__}
    return sorted({file for name in kinds if (file := getattr(sys.modules.get(name), "__file__", None)) is not None})


@functools.cache
def _program() -> str:
    """Return the version of each file of this program."""
    return "\n".join(map(_version, sorted(map(str, _PROGRAM.rglob("*.py")))))


def _version(file: str) -> str:
    # Python as others embed it has its own modules in an archive, or in itself.
    stat = Path(file).stat() if Path(file).exists() else None
    return f"{file} {stat and (stat.st_mtime_ns, stat.st_size)}"


def _folder() -> Path:
    return user_files.cache_folder() / "audited"
