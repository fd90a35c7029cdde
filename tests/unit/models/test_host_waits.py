"""Places where the host would wait for the device are counted on the pretended one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import second_device
import torch
import waits
from torch import Tensor

from reelworks.data.loader import upload

Use = Callable[[Tensor], object]

COUNTED: dict[str, tuple[int, Use]] = {
    "item": (1, lambda there: there.sum().item()),
    "condition": (1, lambda there: bool(there.any())),
    "list": (1, Tensor.tolist),
    "to the host": (1, Tensor.cpu),
    "to the device": (1, lambda there: torch.ones(2).to(there.device)),
    "numbers": (1, lambda there: torch.tensor([1, 2], device=there.device)),
    "numbers beside a tensor": (1, lambda there: there.new_tensor([1, 2])),
    "mask": (1, lambda there: there[there > 0]),
    "value at a mask": (1, lambda there: there.clone().__setitem__(there > 0, there[0])),
    "index of the host": (1, lambda there: there[torch.tensor([0])]),
    "places": (1, torch.nonzero),
    "unique values": (1, torch.unique),
    "repeats": (2, lambda there: there.repeat_interleave(there.long(), dim=0)),
}
FREE: dict[str, Use] = {
    "sums": lambda there: torch.where(there > 0, there * 2.0 + 1, there.new_zeros(())).sum(),
    "places in order": lambda there: there[there.argsort()],
    "one number": lambda there: there.clone().fill_(2.0),
    "copy there": lambda there: there.to(torch.float64).copy_(there),
    "equal repeats": lambda there: there.repeat_interleave(3),
    "repeats of a known sum": lambda there: there.repeat_interleave(there.long(), output_size=3),
    "copy from pinned memory": lambda there: upload.to_device(torch.ones(2), there.device),
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return second_device.use(monkeypatch)


@pytest.mark.parametrize("name", COUNTED)
def test_what_waits_is_counted(device: torch.device, name: str) -> None:
    there = torch.ones(3, device=device)
    count, use = COUNTED[name]
    with waits.counted() as places:
        use(there)
    assert len(places) == count, places
    assert all(place.startswith("test_host_waits.py:") for place in places), places


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait_is_not_counted(device: torch.device, name: str) -> None:
    there = torch.ones(3, device=device)
    with waits.counted() as places:
        FREE[name](there)
    assert not places


def test_a_backward_pass_is_counted(device: torch.device) -> None:
    there = torch.ones(3, device=device, requires_grad=True)
    kept = there[there > 0].sum()
    with waits.counted() as places:
        torch.autograd.backward(kept)
    assert len(places) == 1
