"""The pretended device computes what the CPU does, and refuses what CUDA refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import second_device
import torch
from torch import Tensor, nn
from torch.nn import functional

Mix = Callable[[Tensor, Tensor], object]

REFUSED: dict[str, Mix] = {
    "sum": lambda there, here: there + here,
    "sum, the other first": lambda there, here: here + there,
    "in place": lambda there, here: here.add_(there),
    "lerp": lambda there, here: there.lerp_(here, 0.5),
    "product": lambda there, here: there @ here.T,
    "linear": lambda there, here: functional.linear(there, here),
    "attention": lambda there, here: functional.scaled_dot_product_attention(there[None], here[None], here[None]),
    "mask": lambda there, here: there.masked_fill(here > 0, 0.0),
    "where": lambda there, here: torch.where(there > 0, there, here),
    "stack": lambda there, here: torch.stack([there, here]),
    "stack of scalars": lambda there, here: torch.stack([there.sum(), here.sum()]),
    "stack of norms": lambda there, here: torch.stack(torch._foreach_norm([there, here])),
    "cat": lambda there, here: torch.cat([here, there]),
    "foreach": lambda there, here: torch._foreach_add([there], [here]),
    "foreach in place": lambda there, here: torch._foreach_lerp_([there], [here], 0.5),
    "output": lambda there, here: torch.add(there, there, out=here),
    "equal": lambda there, here: torch.equal(there, here),
    "gather": lambda there, here: there.gather(0, here.long()),
    "embedding": lambda there, here: functional.embedding(here.long(), there),
    "convolution": lambda there, here: functional.conv1d(there[None], here[:, :, None]),
    "index_add": lambda there, here: there.index_add_(0, here[0].long(), there),
    "CPU indexed by the device": lambda there, here: here[there.long()],
    "value of a mask": lambda there, here: there.__setitem__(there > 0, here[here > 0]),
    "gradient": lambda there, here: torch.autograd.grad(there.requires_grad_().square(), there, here),
    "numpy": lambda there, here: there.numpy(),
    "asarray": lambda there, here: np.asarray(there),
    "generator of the CPU": lambda there, here: there.normal_(generator=torch.Generator()),
    "default generator": lambda there, here: torch.randn(2, device=there.device, generator=torch.default_generator),
}
ALLOWED: dict[str, Mix] = {
    "scalar of the CPU": lambda there, here: there * here.sum(),
    "where with a scalar": lambda there, here: torch.where(there > 0, there, here.sum()),
    "indices of the CPU": lambda there, here: there[here[0].long()],
    "mask of the CPU as an index": lambda there, here: there[here > 0],
    "value at indices of the CPU": lambda there, here: there.__setitem__(here > 0, 1.0),
    "scalar at a mask": lambda there, here: there.__setitem__(here > 0, here.sum()),
    "copy to it": lambda there, here: there.copy_(here),
    "copy from it": lambda there, here: here.copy_(there),
    "to": lambda there, here: here.to(there),
    "cpu": lambda there, here: there.cpu() + here,
    "norms": lambda there, here: torch._foreach_norm([there, here]),
    "generator": lambda there, here: there.normal_(generator=torch.Generator(there.device).manual_seed(0)),
    "tolist": lambda there, here: [*there.tolist(), there.sum().item(), bool(there.sum() > 0)],
    "a new scalar": lambda there, here: there + torch.tensor(1.0),
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return second_device.use(monkeypatch)


def _both(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.ones(2, 2, device=device), torch.zeros(2, 2)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses_is_refused(device: torch.device, name: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"device|secondgpu"):
        REFUSED[name](*_both(device))


@pytest.mark.parametrize("name", ALLOWED)
def test_what_cuda_allows_is_allowed(device: torch.device, name: str) -> None:
    there, here = _both(device)
    ALLOWED[name](there, here)
    assert (there.device, here.device.type) == (device, "cpu")


def test_views_share_memory(device: torch.device) -> None:
    whole = torch.arange(12.0, device=device).view(3, 4)
    whole[1:, ::2].t().add_(100)
    whole.view(torch.int32)[0, 0] = 1
    expected = torch.arange(12.0).view(3, 4)
    expected[1:, ::2] += 100
    expected.view(torch.int32)[0, 0] = 1
    assert torch.equal(whole.cpu(), expected)
    turned = torch.view_as_complex(whole.view(3, 2, 2))
    assert torch.equal(turned.conj().cpu(), torch.view_as_complex(expected.view(3, 2, 2)).conj())
    assert torch.equal(torch.cat([torch.empty(0, device=device), whole.flatten()]).cpu(), expected.flatten())


@pytest.mark.parametrize("compute", [None, torch.bfloat16])
def test_a_step_is_that_of_the_cpu(device: torch.device, compute: torch.dtype | None) -> None:
    """Forward and backward, also in autocast, and the optimizer; layers and gradients lie on the device."""
    weights = []
    for place in (torch.device("cpu"), device):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 2))
        inputs = torch.randn(2, 3, 5, 5).to(place)
        layers.to(place)
        optimizer = torch.optim.AdamW(layers.parameters(), lr=0.1)
        with torch.autocast(place.type, dtype=compute, enabled=compute is not None):
            out = layers(inputs)
        assert out.dtype == (compute or torch.float32)
        torch.autograd.backward(out.float().square().sum())
        optimizer.step()
        weights.append([p.detach().cpu() for p in layers.parameters()])
        assert {(p.device, p.grad.device) for p in layers.parameters() if p.grad is not None} == {
            (inputs.device, inputs.device)
        }
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
