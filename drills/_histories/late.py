"""Installs the watch in a process that types a command, once the trainer is imported, and not in others."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_TRAINER = "reelworks.training.loop.trainer"


class _Finder:
    """Finds the trainer as it would be found, and watches it when it is there."""

    def __init__(self, orders: str) -> None:
        self._orders = orders

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            from drills._histories import watch

            watch.install(json.loads(Path(self._orders).read_text(encoding="utf-8")))

        loader.exec_module = exec_module
        return spec


def install(orders: str) -> None:
    """Watch a training that this process may become.

    Args:
        orders: A file with what `watch.install` is told.
    """
    sys.meta_path.insert(0, _Finder(orders))
