"""Import large libraries on first use, which takes seconds, and silence them: they warn for every caption."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

# The others import it if it is installed, for layers that nothing here uses; that takes seconds.
_UNUSED = "bitsandbytes"
_left_out: set[str] = set()
logging.getLogger(_UNUSED).setLevel(logging.ERROR)  # it warns of missing CPU kernels


def leave_out_unused() -> None:
    """Let libraries be imported as if those were missing that only they use: for a process of the command line.

    A program that uses the library may want them, and would not be told why they are missing.
    """
    _left_out.add(_UNUSED)


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
    """Import without what takes half of the time: what is left out, and the garbage collector, which finds nothing."""
    collects, hidden = gc.isenabled(), _left_out - sys.modules.keys()
    gc.disable()
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
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
