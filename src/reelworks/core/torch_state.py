"""Work apart from what a program has set in torch and in random generators, and leave all that as it was."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from reelworks.core import machine, optional_imports
from reelworks.core.context_variables import giving_back

if TYPE_CHECKING:
    import torch


@contextmanager
def own(device: torch.device | None = None) -> Iterator[None]:
    """Compute as in a process that has just loaded torch, and give back what the work changes.

    Generators of random numbers are given back of the CPU and of `device`, by default of the GPU if the program has used it.
    A notebook may have turned gradients off, be in `inference_mode` or under autocast, or have another default dtype or
    device. A training sets the number of threads, and random generators for each micro-batch; it hides warnings, and the
    messages and bars of libraries. After an error the memory that the work took is free for the next.
    """
    import torch

    # To begin with a GPU takes seconds, and memory of it.
    is_used = device is not None or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    device = device or machine.default_device()
    with giving_back() as stack:
        stack.enter_context(warnings.catch_warnings())
        optional_imports.silence()
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        if device.type != "cpu" and is_used:
            generators = torch.get_device_module(device)
            stack.callback(generators.set_rng_state, generators.get_rng_state())
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in {"cpu", device.type}:
            stack.callback(torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind))
            torch.set_autocast_enabled(kind, False)
        # Only where the outermost autocast ends does torch forget the weights that were cast, which the next step changes.
        for _ in range(torch.autocast_increment_nesting() - 1):
            torch.autocast_decrement_nesting()
            stack.callback(torch.autocast_increment_nesting)
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        if torch.is_inference_mode_enabled():  # to enter it sets the threads of backward passes, too
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        try:
            yield
        except BaseException as error:
            _let_go(error)
            raise


def _let_go(error: BaseException) -> None:
    """Let an error, which a notebook keeps until the next one, keep no tensors of the frames that it left."""
    chain: list[BaseException | None] = [error]
    for one in chain:
        if one is not None:
            traceback.clear_frames(one.__traceback__)
            chain += [each for each in (one.__cause__, one.__context__) if each not in chain]
