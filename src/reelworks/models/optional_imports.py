"""Large libraries, imported when they are needed and told to be quiet: they take seconds, and warn per caption."""

from __future__ import annotations

import contextlib
import importlib
import logging
from typing import Any

# Others import it where it is installed, and it complains of kernels for CPUs that nothing here asks for.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


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


def without_weights() -> contextlib.AbstractContextManager[None]:
    """Build networks whose parameters, not their buffers, lie on `meta` while it is open."""
    accelerate: Any = importlib.import_module("accelerate")  # comes with peft
    result: contextlib.AbstractContextManager[None] = accelerate.init_empty_weights(include_buffers=False)
    return result
