"""Import large libraries on first use, which takes seconds, and silence them: they warn for every caption."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

# Others import it if it is installed, for layers that nothing here uses; that takes seconds.
_UNUSED = "bitsandbytes"
logging.getLogger(_UNUSED).setLevel(logging.ERROR)  # it warns of missing CPU kernels


def transformers() -> Any:
    """Import transformers."""
    return _silent("transformers")


def diffusers() -> Any:
    """Import diffusers."""
    _silent("transformers")
    return _silent("diffusers")


def from_diffusers(name: str) -> Any:
    """Import a class of diffusers, and with it most of diffusers' modules."""
    library = diffusers()
    with importing():
        return getattr(library, name)


def peft() -> Any:
    """Import peft."""
    with importing():
        return importlib.import_module("peft")


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import without what takes half of the time: bitsandbytes, and the garbage collector, which finds nothing."""
    collects, hides = gc.isenabled(), _UNUSED not in sys.modules
    gc.disable()
    if hides:
        sys.modules[_UNUSED] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        yield
    finally:
        if hides:
            del sys.modules[_UNUSED]
        if collects:
            gc.enable()


def _silent(name: str) -> Any:
    with importing():
        module: Any = importlib.import_module(name)
    module.utils.logging.set_verbosity_error()
    module.utils.logging.disable_progress_bar()
    hub: Any = importlib.import_module("huggingface_hub")
    if not hub.constants.HF_HUB_DISABLE_PROGRESS_BARS:
        hub.utils.enable_progress_bars()  # of downloads, which transformers turned off too
    return module


def without_weights() -> contextlib.AbstractContextManager[None]:
    """Return a context in which networks are built with parameters, but not buffers, on `meta`."""
    with importing():
        accelerate: Any = importlib.import_module("accelerate")  # comes with peft
    result: contextlib.AbstractContextManager[None] = accelerate.init_empty_weights(include_buffers=False)
    return result
