"""What holds for all tests of GPUs."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _the_cpu_works_on_few_threads() -> None:
    """The networks are tiny: on many cores, threads would mostly wait for each other."""
    torch.set_num_threads(2)
