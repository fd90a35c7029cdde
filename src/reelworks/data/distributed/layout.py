"""Choose how the ranks share a network: copies, shards, or copies in shards. Does not import torch.

A layout is a grid of ranks with the dimensions replicate × shard. Ranks of a row hold one copy of the network in
shards, and are neighbours, so that they lie on one node; ranks of a column hold the same shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.data.distributed.config import ParallelConfig

# Share of a device's memory for weights, gradients, optimizer and average; the rest is for activations.
STATE_SHARE = 0.5


@dataclass(frozen=True)
class Layout:
    """Number of copies of the network, and ranks that share each copy.

    Examples:
        >>> Layout.from_strategy("hsdp", 8, shard_size=4)
        Layout(replicas=2, shards=4)
    """

    replicas: int
    shards: int

    @classmethod
    def from_strategy(cls, strategy: str, ranks: int, shard_size: int = 1) -> Self:
        """Return the layout of a strategy other than "auto"."""
        shards = {"replicated": 1, "fsdp": ranks, "hsdp": shard_size}[strategy]
        assert ranks % shards == 0, "require_divisible was called"
        return cls(ranks // shards, shards)

    @property
    def strategy(self) -> str:
        """Name of the strategy that this is."""
        if self.shards == 1:
            return "replicated"
        return "fsdp" if self.replicas == 1 else "hsdp"

    def __str__(self) -> str:
        return {
            "replicated": f"each of {self.replicas} ranks holds all weights",
            "fsdp": f"{self.shards} ranks share one copy of the weights",
            "hsdp": f"{self.replicas} copies of the weights, each shared by {self.shards} ranks",
        }[self.strategy]


@dataclass(frozen=True)
class Needs:
    """Facts about a network in training by which "auto" decides.

    Attributes:
        is_lora: Whether a LoRA is trained, so that few gradients are summed over ranks.
        state_bytes: Weights, gradients, optimizer state and average of one full copy.
        device_bytes: Memory of a rank's device, or its share of the machine's memory on a CPU.
        whole: Why the optimizer needs whole weights on each rank; empty if it does not.
    """

    is_lora: bool
    state_bytes: int
    device_bytes: int
    whole: str = ""


def shard_size(config: ParallelConfig, ranks: int, local_ranks: int) -> int:
    """Return the ranks that share a copy with "hsdp".

    Raises:
        UserError: The number of ranks is not a multiple of it.
    """
    size = config.shard_size or local_ranks
    if ranks % size:
        given = config.shard_size is not None
        raise UserError(
            f"{ranks} ranks cannot be divided into groups of {size}"
            + ("" if given else ", the ranks of this node: nodes have different numbers of ranks"),
            code="ranks-not-divisible",
            field="parallel.shard_size",
            value=size,
            remedy=f"set it to a divisor of {ranks}, start a multiple of {size} ranks, or set parallel.strategy = "
            '"fsdp"',
        )
    return size


def fixed(config: ParallelConfig, ranks: int, local_ranks: int) -> Layout | None:
    """Return the layout that a recipe names; None with "auto". Raises as `shard_size` does."""
    if config.strategy == "auto":
        return None
    size = shard_size(config, ranks, local_ranks) if config.strategy == "hsdp" else 1
    return Layout.from_strategy(config.strategy, ranks, size)


def choose(config: ParallelConfig, ranks: int, local_ranks: int, needs: Needs) -> tuple[Layout, str]:
    """Return the layout of a recipe on some number of ranks, and the reason for it in one clause."""
    if (named := fixed(config, ranks, local_ranks)) is not None:
        return named, f'parallel.strategy = "{config.strategy}"'
    room = int(STATE_SHARE * needs.device_bytes)
    fits = f"{units.size(needs.state_bytes)} with optimizer and average are at most half of a rank's {units.size(needs.device_bytes)}"
    if needs.whole:
        return Layout.from_strategy("replicated", ranks), f"the optimizer needs whole weights: {needs.whole}"
    if needs.is_lora and needs.state_bytes <= room:
        return Layout.from_strategy("replicated", ranks), f"a LoRA whose base fits: {fits}"
    if 1 < local_ranks < ranks and ranks % local_ranks == 0 and needs.state_bytes <= room * local_ranks:
        return Layout.from_strategy("hsdp", ranks, local_ranks), (
            f"several nodes of {local_ranks} ranks, each of which holds {units.size(needs.state_bytes)} with optimizer and "
            "average in at most half of its memory"
        )
    return Layout.from_strategy("fsdp", ranks), (
        f"a LoRA whose base does not fit: {units.size(needs.state_bytes)} are more than half of {units.size(needs.device_bytes)}"
        if needs.is_lora
        else "all weights are trained"
    )
