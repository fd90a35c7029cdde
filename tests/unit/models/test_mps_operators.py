"""Networks call nothing that torch lacks on Apple's GPUs, as `docs/how-to/use-a-mac.md` says."""

from __future__ import annotations

import mps_operators
import pytest
import second_device
import torch

from reelworks.testing import contract

_QUICK = ("sd1.5-tiny", "wan-tiny")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in _QUICK)) for name in contract.CLASSES]
)
@pytest.mark.slow
def test_networks_need_no_fallback(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert mps_operators.missing(name, second_device.use(monkeypatch)) == set()


def test_what_is_lacking_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Singular values are lacking, and so is a call that is composed of them; sums and what they are made of are there."""
    device = second_device.use(monkeypatch)
    with mps_operators.noted() as called:
        (torch.ones(3, 3, device=device).double() @ torch.ones(3, 3, device=device).double()).mean()
    assert called.count
    assert not called.missing
    with mps_operators.noted() as called:
        torch.linalg.matrix_rank(torch.ones(3, 3, device=device))
    assert called.missing == {"_linalg_svd.U"}
