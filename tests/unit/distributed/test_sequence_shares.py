"""Ranks that share the tokens of a sequence compute the attention and the gradients of one rank.

The ranks are threads with a process group of their own each, so that no process is started.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from reelworks.data.distributed.sequence import SequenceGroup
from reelworks.models.sequence.divided_tokens import DividedTokens, Places
from reelworks.models.sequence.sequence_parallel import SequenceParallel

HEADS, WIDTH, TEXTS = 4, 3, 2
TOKENS = 5  # with one of padding on two ranks, and three on four
Layer = Callable[[Tensor, Tensor, SequenceGroup | None], tuple[Tensor, Tensor]]


def among(q_BLAE: Tensor, k_BLAE: Tensor, v_BLAE: Tensor) -> Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q_BLAE, k_BLAE, v_BLAE))
    return scaled_dot_product_attention(q, k, v).transpose(1, 2)


def plain(clip: Tensor, text: Tensor, group: SequenceGroup | None) -> tuple[Tensor, Tensor]:
    if group is None:
        return among(clip, clip.sin(), clip.cos()), text
    q, k, v = (each.transpose(1, 2) for each in (clip, clip.sin(), clip.cos()))
    return group.shares(TOKENS).attend(q, k, v).transpose(1, 2), text


def by_function(clip: Tensor, text: Tensor, group: SequenceGroup | None) -> tuple[Tensor, Tensor]:
    if group is None:
        return plain(clip, text, None)
    return group.shares(TOKENS).attend_by(among, clip, clip.sin(), clip.cos()), text


def with_texts(clip: Tensor, text: Tensor, group: SequenceGroup | None) -> tuple[Tensor, Tensor]:
    pair = (clip, clip.sin(), clip.cos()), (text, text.sin(), text.cos())
    if group is not None:
        return group.shares(TOKENS).attend_with_whole(*pair, among)
    out = among(*(torch.cat(each, 1) for each in zip(*pair, strict=True)))
    return out[:, :TOKENS], out[:, TOKENS:]


def loss_and_gradient(layer: Layer, group: SequenceGroup | None) -> tuple[Tensor, Tensor]:
    """Return the loss of two layers with a common weight, the text of which reaches it through the clip, and its gradient."""
    draw = torch.Generator().manual_seed(1)
    clip, text, target = (
        torch.randn(2, n, HEADS, WIDTH, generator=draw, dtype=torch.float64) for n in (TOKENS, TEXTS, TOKENS)
    )
    weight = torch.rand(2 * [HEADS * WIDTH], generator=draw, dtype=torch.float64, requires_grad=True)
    clip = clip if group is None else group.shares(TOKENS).split(clip, 1)
    for _ in range(2):
        mixed = ((each.flatten(2) @ weight / WIDTH).unflatten(2, (HEADS, WIDTH)) for each in (clip, text))
        clip, text = layer(*mixed, group)
    clip = clip if group is None else group.shares(TOKENS).gather(clip, 1)
    loss = (clip - target).square().mean()
    torch.autograd.backward(loss)
    assert weight.grad is not None
    return loss.detach(), weight.grad


@pytest.mark.parametrize("layer", [plain, by_function, with_texts])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_loss_is_that_of_one_rank_and_gradients_sum_to_its_gradient(
    tmp_path: Path, layer: Layer, ranks: int
) -> None:
    store, wait = dist.FileStore(str(tmp_path / "store")), timedelta(seconds=60)

    def of_rank(rank: int) -> tuple[Tensor, Tensor]:
        own = dist.PrefixStore("group", store)
        group, kind = dist.ProcessGroup(own, rank, ranks), dist.ProcessGroup.BackendType.GLOO
        group._register_backend(torch.device("cpu"), kind, dist.ProcessGroupGloo(own, rank, ranks, wait))
        return loss_and_gradient(layer, SequenceGroup(group, rank, ranks))

    with ThreadPoolExecutor(ranks) as threads:
        of_ranks = list(threads.map(of_rank, range(ranks)))
    loss, gradient = loss_and_gradient(layer, None)
    for mine, _ in of_ranks:
        torch.testing.assert_close(mine, loss)
    torch.testing.assert_close(torch.stack([each for _, each in of_ranks]).sum(0), gradient)


def test_ranks_share_tokens_again_also_after_an_error() -> None:
    """A training goes on after previews that failed, and its gradients are sums over the ranks of a group."""

    class Network:
        is_shared = False

        def start(self) -> None:
            self.is_shared = True

        def stop(self) -> None:
            self.is_shared = False

    network = Network()
    shared = SequenceParallel({2: [network]})
    shared.use(2)

    def fail() -> None:
        with shared.paused():
            assert not network.is_shared
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert network.is_shared


class Halves:
    """The first half of tokens, which a gather doubles."""

    @staticmethod
    def split(value: Tensor, dim: int) -> Tensor:
        return value.narrow(dim, 0, value.shape[dim] // 2)

    @staticmethod
    def gather(value: Tensor, dim: int) -> Tensor:
        return torch.cat([value, value], dim)


class Network(nn.Module):
    """Adds angles and times to its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.angles, self.block, self.proj_out = Angles(), Tokens(), nn.Identity()

    def forward(self, hidden_states: Tensor, timestep: Tensor) -> tuple[Tensor, int]:
        (angles,) = self.angles(hidden_states.shape[1])
        tokens = self.block(hidden_states=hidden_states)
        here: Tensor = tokens + angles[..., None] + (timestep[..., None] if timestep.ndim == 2 else 0)
        return self.proj_out(here), here.shape[1]


class Angles(nn.Module):
    def forward(self, tokens: int) -> tuple[Tensor]:
        return (torch.arange(tokens)[None],)


class Tokens(nn.Module):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states


@pytest.mark.parametrize("times", [(1,), (1, 6)])
def test_tokens_are_divided_between_start_and_stop_and_whole_outside(times: tuple[int, ...]) -> None:
    """However often, as buckets of several degrees do; times of tokens go with them."""
    network, group = Network(), cast(Any, SimpleNamespace(shares=lambda _: Halves))
    places = Places(lambda _: False, first="block", angles="angles", angles_dim=1, processor=lambda *_: None)
    divided = DividedTokens(network, places, group)
    tokens, time = torch.randn(1, 6, 2), torch.randn(times)
    for _ in range(2):
        out, here = network(tokens, time)
        assert (out.shape, here) == (tokens.shape, 6)
        divided.start()
        shared, here = network(tokens, timestep=time)
        assert (shared.shape, here) == (tokens.shape, 3)
        assert torch.equal(shared[:, :3], out[:, :3])
        divided.stop()
