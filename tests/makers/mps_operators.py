"""Operators that a network calls, and those of them that torch has no kernel of for Apple's GPUs, by torch's own list.

What torch registers for its devices stands in `native_functions.yaml`, which comes with every build of it. An operator
without a kernel of the device is computed by its composite, where it has one, in terms of others. Those are seen on the
pretended device, which has no kernels either.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import second_device
import torch
import torchgen
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract

# Composed by torch of `_mps_convolution` and its like, and not by the composite that the pretended device would take.
_COMPOSED = {"convolution", "convolution_backward"}


@functools.cache
def of_mps() -> frozenset[str]:
    """Return the names of the operators that torch has kernels of for Apple's GPUs, such as `add.Tensor`."""
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DispatchKey

    folder = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    own = parsed.backend_indices[DispatchKey.MPS].index
    return _COMPOSED | frozenset(
        str(function.func.name)
        for function in parsed.native_functions
        if function.func.name in own or function.structured_delegate in own
    )


class Called(TorchDispatchMode):
    """Notes the operators that reach a device, while open; `missing` are those without a kernel of Apple's GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()
        self.count = 0
        self._is_covered = False

    def note(self, name: str) -> None:
        """Note an operator of the pretended device."""
        self.count += 1
        if not self._is_covered and name not in of_mps():
            self.missing.add(name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        former, self._is_covered = self._is_covered, func.name().removeprefix("aten::") in of_mps()
        try:
            return func(*args, **kwargs or {})
        finally:
            self._is_covered = former


@contextmanager
def noted() -> Iterator[Called]:
    """Note the operators on the pretended device while open."""
    with Called() as called:
        second_device.observers.append(called.note)
        try:
            yield called
        finally:
            second_device.observers.remove(called.note)


def missing(name: str, device: torch.device) -> set[str]:
    """Return the operators of a family's tiny network, in its passes forward and backward, that torch lacks for Apple's GPUs."""
    network = contract.build(name)
    network.module.to(device)
    boundary = DtypeBoundary(network)
    inputs = [contract.example(shape, name).each(lambda tensor: tensor.to(device)) for shape in contract.shapes(name)]
    with noted() as called, sdpa_kernel(SDPBackend.MATH):
        for each in inputs:
            boundary(each).float().square().mean().backward()
    assert called.count > 100, name
    return called.missing
