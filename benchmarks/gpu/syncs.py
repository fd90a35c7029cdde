"""Places in a forward and backward pass where the host waits for the device, for each family.

A pass that waits leaves the device idle while the host launches the next operations. Torch warns of such places on CUDA
alone; on a CPU the passes run, and nothing is counted.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract

_TINY = ("stdit3-tiny", "flux-tiny")
_MOST_PLACES = 5


def rows(_: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each family's tiny network: how often it waits, and in which lines."""
    for name in _TINY if tiny else contract.FAMILIES:
        try:
            yield {"family": name, **_count(name, device)}
        except Exception as error:  # of one family; the others go on
            yield {"family": name, "error": f"{type(error).__name__}: {error}"[:400]}


def _count(name: str, device: str) -> dict[str, Any]:
    inputs = contract.example(contract.shapes(name)[-1], name).each(lambda value: value.to(device))
    denoiser = contract.build(name, compute=torch.bfloat16)
    denoiser.module.to(device)
    boundary = DtypeBoundary(denoiser)

    def run() -> None:
        torch.autograd.backward(boundary(inputs).square().mean())

    run()  # tables and buffers that are made once
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    found = [each for each in seen if "synchroniz" in str(each.message)]
    places = collections.Counter(f"{Path(each.filename).name}:{each.lineno}" for each in found)
    return {"syncs": len(found) if device == "cuda" else None, "places": dict(places.most_common(_MOST_PLACES))}
