"""Find what an entry of a recipe or option names in code: `sharpness.py:Sharpness`, or `my_package.metrics:Sharpness`.

Whether the code may run is asked before, in `core.trust`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def load(entry: str) -> Any:
    """Return the attribute of a file or module that an entry names; a file is run once. May raise anything."""
    place, _, attribute = entry.rpartition(":")
    module = _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    return getattr(module, attribute)


def absolute(entry: str) -> str:
    """Return an entry that names the same in a process with another working directory."""
    place, colon, attribute = entry.rpartition(":")
    return f"{Path(place).resolve()}:{attribute}" if colon and place.endswith(".py") else entry


def _module_of_file(path: Path) -> Any:
    known = f"reelworks_code_{path.resolve().as_posix()}"
    if known in sys.modules:  # the same file has the same classes
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[known] = module
    return module
