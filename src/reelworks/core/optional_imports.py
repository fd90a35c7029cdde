"""Import large libraries on first use, which takes seconds, and silence them: they warn for every caption."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from reelworks.core.context_variables import at_end

# The others import them if they are installed, for what nothing here uses; that takes half of a start.
_UNUSED = ("bitsandbytes", "scipy")
_left_out: set[str] = set()
_loaded: dict[str, Any] = {}
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of missing CPU kernels


def leave_out_unused() -> None:
    """Let libraries be imported as if those were missing that only they use: for a process of the command line.

    A program that uses the library may want them, and would not be told why they are missing.
    """
    _left_out.update(_UNUSED)


def settle_arrow() -> None:
    """Let pyarrow miss pandas now, in a command: with its first array it would import it, which takes half a second.

    What needs pandas imports it all the same, and pyarrow then, too.
    """
    if _left_out:
        sys.meta_path.insert(0, _WithoutPandas)
        try:
            importlib.import_module("pyarrow").array([])
        finally:
            sys.meta_path.remove(_WithoutPandas)


class _WithoutPandas:
    """A finder of modules, since `None` in `sys.modules`, as below, is a module to what Cython compiled."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def with_scipy(kind: type) -> None:
    """Give scipy to the module of a diffusers scheduler, which may have been imported without.

    Raises ImportError: scipy is not installed.
    """
    module: Any = sys.modules[kind.__module__]
    importlib.import_module("scipy.stats")
    module.scipy, module.is_scipy_available = sys.modules["scipy"], lambda: True


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
    silence()
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
            looked = getattr(sys.modules.get("transformers.utils.import_utils"), f"is_{name}_available", None)
            if looked is not None:  # so that it looks again: what a user imports later may need what was left out
                looked.cache_clear()
        if collects:
            gc.enable()


@functools.cache
def _silent(name: str) -> Any:
    with importing():
        _loaded[name] = importlib.import_module(name)
    silence()
    return _loaded[name]


def silence() -> None:
    """Silence what is loaded of the libraries, until the end of the work that gives back what it sets."""
    bars: Any = sys.modules.get("huggingface_hub.utils")  # which they import
    for told in (library.utils.logging for library in [*_loaded.values()]):
        if told.get_verbosity() == told.WARNING:  # which no program has chosen
            told.set_verbosity_error()
            at_end(told.set_verbosity_warning)
        if told.is_progress_bar_enabled():
            # Those of downloads, which transformers turns on and off too, stay as they are.
            keep = bars.disable_progress_bars if bars.are_progress_bars_disabled() else bars.enable_progress_bars
            at_end(keep)
            at_end(told.enable_progress_bar)
            told.disable_progress_bar()
            keep()
    # Norms of low-precision inputs and float32 weights, as under autocast: right, only slower.
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    # Networks of diffusers that use parts which diffusers itself deprecates.
    warnings.filterwarnings("ignore", message=r"`\w+` is deprecated", category=FutureWarning, module="diffusers")


def without_weights() -> contextlib.AbstractContextManager[None]:
    """Return a context in which networks are built with parameters, but not buffers, on `meta`."""
    with importing():
        accelerate: Any = importlib.import_module("accelerate")  # comes with peft
    result: contextlib.AbstractContextManager[None] = accelerate.init_empty_weights(include_buffers=False)
    return result
