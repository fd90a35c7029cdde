"""A pass of a network waits for the device once at most: for how many tokens captions have, which expert clips go to, or in each block tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import second_device
import torch
import waits
from presets import every_class
from torch import Tensor

from reelworks.core.shape import Shape
from reelworks.data.loader import upload
from reelworks.models.families.hunyuan_video15 import network as hunyuan_video15
from reelworks.models.host_waits import NumbersSent
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract

_MOST = 1
# Families whose networks need no value of the inputs as a number.
_WITHOUT = (
    "chroma",
    "ernie",
    "flux-",
    "flux2",
    "hunyuan",
    "krea",
    "ltx",
    "opensora",
    "qwen-image-e",
    "qwen-image-t",
    "sd",
)
_WITHOUT += ("longcat", "sana", "stdit", "wan-e", "wan-f", "wan-i", "wan-t", "wan-v")

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


def test_numbers_are_sent_without_waiting(device: torch.device) -> None:
    with waits.counted() as places, NumbersSent():
        made = torch.tensor([[1, 2]], device=device), torch.as_tensor(3, device=device, dtype=torch.float64)
    assert not places
    assert [each.device.type for each in made] == [second_device.NAME] * 2
    assert [each.tolist() for each in made] == [[[1, 2]], 3.0]
    assert made[1].dtype == torch.float64


@every_class
@pytest.mark.quick_cases(1)
def test_a_pass_waits_once_at_most(device: torch.device, name: str) -> None:
    """Counted in the second pass, since tables are made in the first."""
    denoiser = contract.build(name, compute=torch.bfloat16)
    denoiser.module.to(device)
    boundary = DtypeBoundary(denoiser)
    inputs = contract.example(contract.shapes(name)[-1], name).each(lambda value: value.to(device))

    def run() -> None:
        made = (boundary(inputs),) if inputs.sound is None else boundary.both(inputs)
        torch.autograd.backward(sum((each.square().mean() for each in made), torch.zeros((), device=device)))

    run()
    with waits.counted() as places:
        run()
    most = 3 if name == "hidream-i1-tiny" else _MOST  # once a block, for the numbers of tokens of its experts
    assert len(places) <= (0 if name.startswith(_WITHOUT) else most), places


@pytest.mark.parametrize("shape", [Shape(1, 4, 4), Shape(5, 4, 4)])
def test_tokens_of_hunyuan_video_are_sorted_as_its_network_does(monkeypatch: pytest.MonkeyPatch, shape: Shape) -> None:
    """With a picture and without one, and texts with tokens masked anywhere."""
    name, found = "hunyuan-video-1.5-i2v-tiny", []
    inputs, denoiser = contract.example(shape, name, batch=3), contract.build(name)
    inputs.text_mask[1, 1] = inputs.text_mask[2, 0] = False
    for by in (hunyuan_video15.until_called, lambda *_: nullcontext()):
        monkeypatch.setattr(hunyuan_video15, "until_called", by)
        denoiser.module.zero_grad()
        out = DtypeBoundary(denoiser)(inputs)
        torch.autograd.backward(out.square().mean())
        found.append([out, *(p.grad for p in denoiser.module.parameters() if p.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)
