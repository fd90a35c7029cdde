"""Torch's own kernels of attention by name, and single kinds of calls that are given to one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from reelworks.models.attention import attention_calls
from reelworks.models.attention.attention_calls import Attend, CallKind, kind_of, through

# The last takes every call, and the most time and memory.
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
# Parts of the names of torch's backward functions.
_NAMES = {"Flash": "flash", "Efficient": "memory-efficient", "Cudnn": "cuDNN"}


def versions() -> str:
    """Return the versions that decide which kernels there are, and the card."""
    parts = [f"torch {torch.__version__}"]
    if torch.cuda.is_available():
        hip = torch.version.hip  # on such builds torch gives MIOpen's version as cuDNN's
        library = f"ROCm {hip}, MIOpen" if hip else "cuDNN"
        parts += [
            f"{library} {torch.backends.cudnn.version()}",  # type: ignore[no-untyped-call]
            f"on {torch.cuda.get_device_name()}",
        ]
    return " ".join(parts)


def kernel_of(out: Tensor) -> str:
    """Return the name of the kernel that computed a result, from the function of its backward pass."""
    function = out.grad_fn
    for _ in range(4):  # views and casts of the result come first
        name = "" if function is None else function.name()
        if name.startswith("ScaledDotProduct"):
            return next((kernel for part, kernel in _NAMES.items() if part in name), "chosen")
        function = function.next_functions[0][0] if function is not None and function.next_functions else None
    return "math"


@contextmanager
def replacing(names: Mapping[CallKind, Sequence[str]]) -> Iterator[None]:
    """Compute kinds of calls with the first named kernel that takes them, while open and when they are computed again.

    Gradients come in one layout, in these calls and all others.
    """
    instead = {kind: _in_order(of_kind) for kind, of_kind in names.items()}
    if not instead and not attention_calls.keeps_plans():
        yield
        return

    def attend(former: Attend, *args: Any, **more: Any) -> Tensor:
        # A kind is not asked for without need: of compiled code that knows no sizes it would ask them, and some nested
        # tensors have none.
        is_asked = instead and not any(isinstance(each, Tensor) and each.is_nested for each in (*args, *more.values()))
        backends = instead.get(kind_of(*args, **more)) if is_asked else None
        if backends is None:
            return former(*args, **more)
        with sdpa_kernel(backends, set_priority=True):
            return former(*args, **more)

    with through(attend):
        yield


def _in_order(names: Sequence[str]) -> list[SDPBackend]:
    """Return kernels by name, each once, since compiled code goes wrong with one that is named twice; the last takes all calls."""
    known = [name for name in dict.fromkeys([*names, "math"]) if name in KERNELS]
    return [KERNELS[name] for name in known[: known.index("math") + 1]]
