"""Import large libraries on first use, which takes seconds, and silence them: they warn for every caption."""

from __future__ import annotations

import contextlib
import importlib
import logging
from typing import Any

# Other libraries import it if it is installed, and it warns of missing CPU kernels that nothing here uses.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def transformers() -> Any:
    """Import transformers."""
    return _silent("transformers")


def diffusers() -> Any:
    """Import diffusers."""
    _silent("transformers")
    return _silent("diffusers")


def _silent(name: str) -> Any:
    module: Any = importlib.import_module(name)
    module.utils.logging.set_verbosity_error()
    module.utils.logging.disable_progress_bar()
    hub: Any = importlib.import_module("huggingface_hub")
    if not hub.constants.HF_HUB_DISABLE_PROGRESS_BARS:
        hub.utils.enable_progress_bars()  # of downloads, which transformers turned off too
    return module


def without_weights() -> contextlib.AbstractContextManager[None]:
    """Return a context in which networks are built with parameters, but not buffers, on `meta`."""
    accelerate: Any = importlib.import_module("accelerate")  # comes with peft
    result: contextlib.AbstractContextManager[None] = accelerate.init_empty_weights(include_buffers=False)
    return result
