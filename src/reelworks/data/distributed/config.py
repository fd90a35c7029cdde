"""`[parallel]` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from reelworks.core import units
from reelworks.core.config import Config
from reelworks.core.errors import UserError


class ParallelConfig(Config):
    """Distribution of weights over ranks, offloading to CPU memory, and limits on waiting for other ranks.

    Attributes:
        strategy: "replicated" holds a full copy on every rank; "fsdp" shards weights, gradients and optimizer over all
            ranks; "hsdp" shards them over the ranks of a node and keeps a copy per node; "auto" replicates a LoRA whose
            base fits, and otherwise shards over the nodes' ranks if that fits, or over all, and says why.
        shard_size: Ranks that share one copy of the weights with "hsdp"; default: the ranks of a node.
        sequence_degree: Ranks that share the tokens of each clip, for clips whose activations do not fit into one GPU;
            they exchange tokens for heads around attention (Ulysses); a divisor of the number of attention heads. The
            clips of a `[[bucket]]` with a `sequence_degree` of its own are shared by fewer. "auto": as many for each
            bucket as its memory and time, measured in `buckets.tuned`, ask for.
        max_sequence_degree: With "auto", ranks of a group, which share the longest clips; the number of ranks is a
            multiple of it. Default: 8, or as many of them as the attention heads allow.
        link_gb_per_second: What a rank can send to the others of its sequence group, in 10⁹ bytes per second; planned
            costs and "auto" have the time of exchanges from it. Default: 300, as between H100s with NVLink.
        offload: Keep weights, optimizer state and average in CPU memory and copy each block's weights to the GPU when it
            is used; slower, for networks that do not fit; also works with one process.
        join_seconds: Time for all ranks to arrive at the start; then the missing ones are named.
        step_seconds: Time without progress of a step after which the slowest rank and its clips are named.
        lost_seconds: Time without a sign of life of a rank after which it counts as lost, and all ranks end.
    """

    strategy: Literal["auto", "replicated", "fsdp", "hsdp"] = "auto"
    shard_size: int | None = Field(default=None, ge=1)
    sequence_degree: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    max_sequence_degree: int | None = Field(default=None, ge=1)
    link_gb_per_second: float | None = Field(default=None, gt=0)
    offload: bool = False
    join_seconds: float = Field(default=300.0, gt=0)
    step_seconds: float = Field(default=1800.0, gt=0)

    lost_seconds: float = Field(default=20.0, gt=0)

    @property
    def group_size(self) -> int:
        """Ranks of a sequence group, which share all clips or those of the longest buckets."""
        return (self.max_sequence_degree or 1) if self.sequence_degree == "auto" else self.sequence_degree

    @property
    def group_field(self) -> str:
        """The key that says the ranks of a group."""
        return "parallel.max_sequence_degree" if self.sequence_degree == "auto" else "parallel.sequence_degree"

    def degrees(self) -> list[int]:
        """Return the numbers of ranks that can share the clips of a bucket, ascending: the divisors of the group's."""
        return [n for n in range(1, self.group_size + 1) if self.group_size % n == 0]

    def data_ranks(self, ranks: int) -> int:
        """Return how many micro-batches so many ranks work on at once: those of a sequence group share theirs.

        Raises:
            UserError: The number of ranks is not a multiple of those of a group.
        """
        degree = self.group_size
        if ranks % degree:
            raise UserError(
                f"{units.plural(ranks, 'rank')} cannot be divided into groups of {degree} that share clips",
                code="ranks-not-divisible",
                field=self.group_field,
                value=degree,
                remedy=f"start (or plan with --world) a multiple of {degree} ranks, or set it to a divisor of {ranks}",
            )
        return ranks // degree

    @model_validator(mode="after")
    def _largest_degree_has_use(self) -> Self:
        if self.max_sequence_degree is not None and self.sequence_degree != "auto":
            raise UserError(
                "it bounds degrees that are chosen, and the recipe gives one",
                code="largest-degree-without-use",
                field="parallel.max_sequence_degree",
                value=self.max_sequence_degree,
                remedy='set parallel.sequence_degree = "auto", or leave it out',
            )
        return self

    @model_validator(mode="after")
    def _shard_size_has_use(self) -> Self:
        if self.shard_size is not None and self.strategy != "hsdp":
            raise UserError(
                f'strategy = "{self.strategy}" has no shards of a chosen size',
                code="shard-size-without-use",
                field="parallel.shard_size",
                value=self.shard_size,
                remedy='set parallel.strategy = "hsdp", or leave it out',
            )
        return self
