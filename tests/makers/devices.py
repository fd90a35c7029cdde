"""Parameters of tests whose body runs on the CPU and on a GPU, so that it is known to be right before a GPU is there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
import torch

# With `--second-device`, bodies run on the pretended one.
HERE = "secondgpu" if "SECOND_DEVICE" in os.environ else "cpu"
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)])


def both(names: Iterable[str], quick: Iterable[str] = ()) -> Any:
    """Parametrise `device` and `name`: on the CPU, or the pretended device, all names, those not in `quick` as slow tests, and on a GPU all."""
    cases: list[Any] = []
    for name in names:
        marks = [] if name in set(quick) else [pytest.mark.slow]
        cases += [pytest.param(HERE, name, marks=marks), pytest.param("cuda", name, marks=GPU)]
    return pytest.mark.parametrize(("device", "name"), cases)
