"""Large libraries, imported when they are needed and told to be quiet: they take seconds, and warn per caption."""

from __future__ import annotations

import importlib
from typing import Any


def transformers() -> Any:
    """Import transformers."""
    module: Any = importlib.import_module("transformers")
    module.utils.logging.set_verbosity_error()
    module.utils.logging.disable_progress_bar()
    return module


def diffusers() -> Any:
    """Import diffusers."""
    transformers()
    module: Any = importlib.import_module("diffusers")
    module.utils.logging.set_verbosity_error()
    module.utils.logging.disable_progress_bar()
    return module
