"""Callable packages, so that a public function and a package can share a name."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str, function: str) -> None:
    """Make a package callable, from its `__init__`: forward calls to a function, which is imported at the first call."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **settings: Any) -> Any:
            return getattr(importlib.import_module(module), function)(*args, **settings)

    sys.modules[package].__class__ = CallablePackage
