"""Packages that can be called, so that a public function and a package may have one name."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str, function: str) -> None:
    """Let calls of a package go to a function, which is imported with the first one.

    Args:
        package: Dotted name of the package, which is being imported.
        module: Dotted name of the function's module.
        function: Its name.
    """

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **settings: Any) -> Any:
            return getattr(importlib.import_module(module), function)(*args, **settings)

    sys.modules[package].__class__ = CallablePackage
