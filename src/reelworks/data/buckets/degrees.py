"""Choose for each bucket how many ranks share its clips, and how many clips a micro-batch has.

Memory decides the least degree: the activations of a rank's share of the tokens have to fit. Among those that fit, time
decides: the degree at which a clip takes the least time of all ranks that work on it. Time is the fitted time of a
micro-batch, divided by the degree, plus the exchanges of tokens for heads around attention (Ulysses, as in
`data.distributed.sequence`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reelworks.data.buckets.table import BucketTable
from reelworks.data.schedule.cost_fit import BatchTime, CostModel

# All-to-all over the NVLink of an H100, which is 450 GB/s in each direction by its data sheet: an assumption.
LINK_BYTES_PER_SECOND = 300e9
LATENCY_SECONDS = 30e-6
_TENSORS = 4  # queries, keys and values before attention, and its output after it


@dataclass(frozen=True)
class Exchange:
    """The exchanges of a network whose clips are shared.

    Attributes:
        width: Elements of a token in attention.
        attentions: Attentions among shared tokens in a forward pass.
        forwards: Forward passes for each backward pass, 2 with gradient checkpointing.
        link_bytes_per_second: What a rank sends to the others.
        latency_seconds: Time of an exchange of nothing.
    """

    width: int
    attentions: int
    forwards: int = 1
    bytes_per_element: int = 2
    link_bytes_per_second: float = LINK_BYTES_PER_SECOND
    latency_seconds: float = LATENCY_SECONDS

    def seconds(self, tokens: int, degree: int) -> float:
        """Return the time of all exchanges in training of so many tokens on `degree` ranks, 0 on one."""
        if degree == 1:
            return 0.0
        sent = _TENSORS * (-(-tokens // degree)) * self.width * self.bytes_per_element * (1 - 1 / degree)
        # Before attention and after it; the backward pass exchanges gradients likewise.
        each = sent / self.link_bytes_per_second + 2 * self.latency_seconds
        return (self.forwards + 1) * self.attentions * each


@dataclass(frozen=True)
class RankLimits:
    """Limits of a micro-batch on a rank; a single clip may take longer than `step_seconds` if no degree prevents it."""

    activation_bytes: float
    bytes_per_token: float  # activations of a token in training
    step_seconds: float = math.inf
    clips: int = 512


@dataclass(frozen=True)
class Degree:
    """A way to train a bucket.

    Attributes:
        degree: Ranks that share each of its clips.
        batch_size: Clips that these ranks train together.
        seconds: Planned time of a micro-batch.
        activation_bytes: Memory on each rank.
        fits: Whether this is within the memory; False if no degree is.
    """

    degree: int
    batch_size: int
    seconds: float
    activation_bytes: float
    fits: bool

    @property
    def rank_seconds_per_clip(self) -> float:
        """Time that a clip takes of all ranks together."""
        return self.degree * self.seconds / self.batch_size


def choose(
    tokens: int,
    degrees: Sequence[int],
    model: CostModel,
    exchange: Exchange,
    limits: RankLimits,
    batch_size: int | None = None,
    measured: int | None = None,
) -> Degree:
    """Return the best way to train a bucket at one of some degrees.

    Args:
        tokens: Latent tokens of one clip.
        degrees: Numbers of ranks that can share it.
        model: Time of a micro-batch on one rank.
        exchange: The exchanges of the network.
        limits: Memory, time and clips of a micro-batch.
        batch_size: Clips of a micro-batch; None chooses the most that the limits allow.
        measured: The most clips that one rank was seen to train, 0 if not even one; None if it was not tried.
    """
    if batch_size is None and measured is not None:  # which says more than what was fitted to it
        too_much = (measured + 1) * tokens * limits.bytes_per_token
        room = too_much if measured else min(too_much, limits.activation_bytes)
        limits = replace(limits, activation_bytes=math.nextafter(room, 0))
    ways = (at_degree(tokens, degree, model, exchange, limits, batch_size) for degree in degrees)
    return min(ways, key=lambda way: _rank(way, limits))


def at_degree(
    tokens: int, degree: int, model: CostModel, exchange: Exchange, limits: RankLimits, batch_size: int | None = None
) -> Degree:
    """Return the way to train a bucket at a degree, with the most clips that the limits allow if no number is given."""

    def with_clips(size: int) -> Degree:
        # What does not depend on the tokens is not divided.
        shared = (model.milliseconds(tokens, size) - model.per_batch) / degree
        seconds = (model.per_batch + shared) / 1000 + exchange.seconds(size * tokens, degree)
        memory = size * -(-tokens // degree) * limits.bytes_per_token
        return Degree(degree, size, seconds, memory, memory <= limits.activation_bytes)

    if batch_size is not None:
        return with_clips(batch_size)
    low, high = 1, limits.clips + 1  # memory and time grow with the clips
    while low + 1 < high:
        middle = (low + high) // 2
        found = with_clips(middle)
        low, high = (middle, high) if found.fits and found.seconds <= limits.step_seconds else (low, middle)
    return with_clips(low)


def on_groups(times: Mapping[str, BatchTime], table: BucketTable, exchange: Exchange) -> dict[str, BatchTime]:
    """Return the times of what a sequence group trains side by side, given those of micro-batches on one rank."""
    found = dict(times)
    for bucket in table.buckets:
        if bucket.name in found and bucket.batch_size:
            one, degree, size = found[bucket.name], bucket.sequence_degree, bucket.batch_size
            none, full = (1000 * exchange.seconds(clips * bucket.tokens, degree) for clips in (0, size))
            per_clip = (one.per_clip / degree + (full - none) / size) / bucket.parts
            found[bucket.name] = BatchTime(one.per_batch + none, per_clip)
    return found


def _rank(one: Degree, limits: RankLimits) -> tuple[bool, bool, float, int]:
    """Return what to prefer: memory, then the bound on time, then the time; what keeps no bound should do least harm."""
    if not one.fits:
        return True, True, one.activation_bytes, one.degree
    slow = one.seconds > limits.step_seconds
    return False, slow, one.seconds if slow else one.rank_seconds_per_clip, one.degree
