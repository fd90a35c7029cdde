"""The memory of a training, by part, and its time, computed from the sizes of its network; torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from reelworks.core import gpus
from reelworks.core.gpus import Gpu
from reelworks.core.shape import Geometry
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.data.loader.dataset import Dataset
from reelworks.data.schedule.plan import EpochPlan
from reelworks.models import components, registry
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.training.memory import step_time
from reelworks.training.memory.step_time import Work
from reelworks.training.recipe.recipe import Recipe

T = TypeVar("T")
_FEWEST_BLOCKS = 16  # of networks that are so large that it matters
BUS_GB = 25.0  # per second, of PCIe 4.0 with 16 lanes, from pinned memory
_CONTEXT_BYTES = 600_000_000  # that CUDA and its libraries take on a GPU, beside torch's tensors
# What torch's allocator holds beyond the tensors of a pass: 4 to 7 % without recomputation or with a selective one, and 5 to
# 24 % with all recomputed, for steps of one shape of Wan 2.1 1.3B, SD3.5 medium and STDiT3-XL, by `benchmarks.memory.held`.
_HELD_SHARE, _HELD_SHARE_OF_INPUTS = 0.07, 0.25
# Parameters of the encoders that do not belong to a family of diffusers.
_PARAMETERS = {
    "pixel": 0,
    "pca": 794_720,
    "opensora-1.1": 83_653_863,
    "opensora-1.2": 393_341_007,
    "hashed": 0,
    "t5": 4_762_310_656,
}


class Pass(NamedTuple):
    """Memory and work of one forward and backward pass.

    Attributes:
        peak_bytes: Peak memory of a rank in addition to parameters and their gradients: activations and temporary values.
        flops: Multiplications and additions in matrix products and convolutions, of all ranks that share the clips.
        work: What the time depends on, of all these ranks too.
    """

    peak_bytes: int
    flops: int
    work: Work


class NetworkSizes(NamedTuple):
    """Sizes of a network that is to be trained.

    Attributes:
        parameters: Number of parameters, without a LoRA.
        trained_parameters: Number of parameters of the LoRA, or of the network.
        base_bytes: Frozen weights, as they are stored.
        optimizer_bytes: State of the optimizer.
        in_use_bytes: Weights that are on the GPU at one time, with offload.
        runs_on_meta: Whether its passes can be measured on the meta device.
    """

    parameters: int
    trained_parameters: int
    base_bytes: int
    optimizer_bytes: int
    in_use_bytes: int
    runs_on_meta: bool


@dataclass(frozen=True)
class Memory:
    """Memory on one GPU in bytes, by part, and CPU memory.

    Attributes:
        base: Frozen weights, 0 without a LoRA; with offload only those on the GPU at one time.
        trained: Trained weights: a LoRA, or the network.
        encoders: Autoencoder, text, image and sound encoders; if latents are stored and there are no previews, what
            encoding needs beyond the memory of training.
        activations: Peak of a forward and backward pass of the largest bucket; memory of encoding is released by then.
        reserve: Memory for CUDA itself, and what torch's allocator holds beyond the tensors.
        host: CPU memory, not part of the total.
    """

    JSON_KEYS: ClassVar = (
        *("base", "trained", "gradients", "optimizer", "ema", "encoders", "activations", "reserve", "host", "total"),
    )

    base: int
    trained: int
    gradients: int
    optimizer: int
    ema: int
    encoders: int
    activations: int
    reserve: int = _CONTEXT_BYTES
    host: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts on the GPU."""
        return sum(self._parts().values())

    def to_text(self) -> str:
        """Return the parts in GB, largest first, without those below 0.05 GB."""
        parts = sorted(self._parts().items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in parts if size >= 5e7)

    def _parts(self) -> dict[str, int]:
        return {name: size for name, size in asdict(self).items() if name != "host"}


@dataclass(frozen=True)
class Estimate:
    """Memory and work of a recipe on one GPU.

    Attributes:
        parameters: Number of parameters of the network, without a LoRA.
        trained_parameters: Number of parameters of the LoRA, or of the network.
        memory: That of the GPU, which may share the weights with others.
        flops: Operations of a forward and backward pass of a micro-batch, by bucket name.
        work: What its time depends on, by bucket name.
        measured: False for a network that cannot run on the meta device: activations are left out, and work is computed
            from the numbers of parameters and tokens.
        compiled: Whether the network is compiled.
        moved_bytes: Bytes that a micro-batch moves between CPU memory and the GPU, with offload.
    """

    JSON_KEYS: ClassVar = ("parameters", "trained_parameters", "memory", "flops", "measured", "moved_bytes")

    parameters: int
    trained_parameters: int
    memory: Memory
    flops: dict[str, float]
    work: dict[str, Work]
    measured: bool
    compiled: bool
    moved_bytes: int = 0

    @property
    def moving_seconds(self) -> float:
        """Seconds that a micro-batch spends on offload transfers."""
        return self.moved_bytes / (BUS_GB * 1e9)

    def update_seconds(self, gpu: Gpu) -> float:
        """Return the seconds of an update of the weights."""
        return step_time.update_seconds(self.trained_parameters, gpu)

    def seconds(self, bucket: str, gpu: Gpu = gpus.USUAL, share: float = 1.0) -> float:
        """Return the seconds of a micro-batch with a share of the batch size, without encoding, decoding and the update of weights.

        Transfers are added in full, although some GPUs hide them behind arithmetic.
        """
        return self.work[bucket].seconds(gpu, compiled=self.compiled, share=share) + self.moving_seconds


def largest(buckets: Iterable[tuple[T, Bucket]]) -> dict[T, Bucket]:
    """Return the bucket of each kind whose micro-batch gives each rank the most tokens."""
    return dict(sorted(buckets, key=lambda of: of[1].tokens * of[1].batch_size / of[1].sequence_degree))


def largest_of_entries(table: BucketTable) -> list[Bucket]:
    """Return the largest bucket of each entry, whose passes the estimate needs."""
    return [*largest((bucket.entry, bucket) for bucket in table.buckets).values()]


def table_of_plans(data: Dataset, plan: EpochPlan | None = None) -> BucketTable:
    """Return the bucket table of a dataset with no more clips in a micro-batch than any epoch may give it.

    `plan` is that of an epoch whose clips and buckets all others have; without it, all clips may come into one bucket.
    """
    table, sizes = data.table, data.table.column_sizes()
    is_filled = table.config.incomplete_batch in ("pad", "repeat")
    # Uses are made where there are few clips alone.
    if is_filled or (plan is None and sizes.max(initial=0) <= len(data.rows)):
        return table
    most = np.full_like(sizes, len(data.uses.row) if plan is None else 0)
    if plan is not None:
        np.maximum.at(most, plan.micro_bucket, np.diff(plan.offsets))
    numbers = zip(table.buckets, most.tolist(), strict=True)
    buckets = (replace(b, batch_size=min(b.batch_size, -(-n // b.parts))) for b, n in numbers)
    return replace(table, buckets=tuple(buckets))


def share(bucket: Bucket, geometry: Geometry) -> Bucket:
    """Return a bucket whose clips have the tokens of a rank's share, or a few more where whole patches do not divide equally."""
    if bucket.sequence_degree == 1:
        return bucket
    shapes = []
    for side, multiple in zip(("height", "width"), geometry.multiple, strict=True):
        size = multiple * -(-getattr(bucket.shape, side) // (multiple * bucket.sequence_degree))
        shapes.append(replace(bucket.shape, **{side: size}))
    shape = min(shapes, key=geometry.tokens)
    return replace(bucket, shape=shape, tokens=geometry.tokens(shape), sequence_degree=1)


def from_passes(
    recipe: Recipe, table: BucketTable, sizes: NetworkSizes, one_pass: Callable[[Bucket], Pass], shards: int = 1
) -> Estimate:
    """Return the estimate of a recipe, given the sizes of its network and a function that measures the pass of a bucket."""
    passes = [(bucket, one_pass(bucket)) for bucket in largest_of_entries(table)]
    fixed = without_activations(recipe, sizes, shards)
    memories = (with_activations(recipe, fixed, one.peak_bytes, recomputation(recipe, b)) for b, one in passes)
    memory = max(memories, key=lambda each: each.total)
    # Scale the work of each entry's largest bucket to the tokens of the others.
    largest = {b.entry: (b.tokens * b.batch_size, one) for b, one in passes}
    flops, work = dict[str, float](), dict[str, Work]()
    for bucket in table.buckets:
        tokens, one = largest[bucket.entry]
        scale = bucket.tokens * bucket.batch_size / tokens
        flops[bucket.name], work[bucket.name] = scale * one.flops, Work(*(scale * each for each in one.work))
    trained_bytes = 4 * sizes.trained_parameters
    # A pass moves all weights to the GPU twice, forward and backward, and gradients back.
    moved = 2 * (sizes.base_bytes + trained_bytes) + trained_bytes if recipe.parallel.offload else 0
    return Estimate(
        sizes.parameters, sizes.trained_parameters, memory, flops, work, sizes.runs_on_meta, recipe.train.compile, moved
    )


def without_activations(recipe: Recipe, sizes: NetworkSizes, shards: int = 1) -> Memory:
    """Compute the memory that a recipe needs in all steps, on one of so many ranks that share the weights.

    Such a rank holds whole weights only while they are in use. A base of few bits is not divided.
    """
    parts = dict.fromkeys(("trained", "gradients", "ema"), 4 * sizes.trained_parameters)
    parts |= {"base": sizes.base_bytes, "optimizer": sizes.optimizer_bytes}
    if shards > 1:
        parts = {name: size // shards for name, size in parts.items()}
        is_divided = recipe.lora is None or recipe.lora.exact_base(recipe.precision.compute) in ("float32", "bfloat16")
        parts["base"] = parts["base"] + sizes.in_use_bytes if is_divided else sizes.base_bytes
    host = 0
    if recipe.train.ema_device == "cpu" and not recipe.parallel.offload:
        host, parts["ema"] = parts["ema"], 0
    if recipe.parallel.offload:
        host = sum(parts.values())
        parts = dict.fromkeys(parts, 0) | {"base": sizes.in_use_bytes}
    if recipe.text_encoder.device == "cpu":
        host += _encoder_bytes(recipe)[1]
    return _with_encoders(recipe, Memory(**parts, encoders=0, activations=0, host=host))


def recomputation(recipe: Recipe, bucket: Bucket) -> Recomputation:
    """Return what the backward passes of a bucket compute again; as long as that is not chosen, as much as possible."""
    whole = recipe.model.gradient_checkpointing
    if whole != "auto":
        return whole
    return True if bucket.recomputation is None else bucket.recomputation


def of_rank(recipe: Recipe, bucket: Bucket, whole: Callable[[Bucket], Pass]) -> Pass:
    """Return the pass of a rank from passes on whole clips of a bucket, whose blocks all recompute the same.

    Ranks that share clips hold their share each. If a share of the blocks keeps inputs alone, the pass lies between two others.
    """
    recomputed = recomputation(recipe, bucket)
    if isinstance(recomputed, float):
        return _partly(lambda one: of_rank(recipe, one, whole), bucket, recomputed)
    one = whole(replace(bucket, sequence_degree=1))
    if bucket.sequence_degree == 1:
        return one
    own = share(bucket, components.geometry(recipe.model, recipe.autoencoder))
    return one._replace(peak_bytes=whole(own).peak_bytes)


def _partly(one_pass: Callable[[Bucket], Pass], bucket: Bucket, share: float) -> Pass:
    """Return the pass of a bucket of which a share of the blocks keeps inputs alone, from those without and with all.

    One block is counted twice: it is recomputed while most of the others still hold what they keep.
    """
    least, most = (one_pass(replace(bucket, recomputation=end)) for end in ("selective", True))

    def between(ends: tuple[float, float]) -> float:
        return (1 - share) * ends[0] + share * ends[1]

    peak, flops = (round(between(ends)) for ends in zip(least[:2], most[:2], strict=True))
    work = Work(*map(between, zip(least.work, most.work, strict=True)))
    block = max(least.peak_bytes - most.peak_bytes, 0) // _FEWEST_BLOCKS
    return Pass(min(peak + block, max(least.peak_bytes, most.peak_bytes)), flops, work)


def with_activations(recipe: Recipe, memory: Memory, peak_bytes: int, recomputed: Recomputation) -> Memory:
    """Return the memory with the peak of a pass, and with what it makes the allocator hold."""
    return _with_encoders(recipe, replace(memory, activations=peak_bytes, reserve=reserve(peak_bytes, recomputed)))


def reserve(activations: int, recomputed: Recomputation) -> int:
    """Return the memory of a GPU that a training takes beyond its tensors, given the peak of a pass."""
    share = _HELD_SHARE if recomputed in (False, "selective") else _HELD_SHARE_OF_INPUTS
    return _CONTEXT_BYTES + round(share * activations)


def _with_encoders(recipe: Recipe, memory: Memory) -> Memory:
    """Return the memory of training with that of the encoders, which come before the network if latents are stored."""
    images, text = _encoder_bytes(recipe)
    text = text if recipe.text_encoder.device == "auto" else 0
    kept = images * recipe.keeps_autoencoder + text * recipe.keeps_text_encoder
    training = memory.total - memory.encoders + kept
    return replace(memory, encoders=kept + max(images + text + memory.reserve - training, 0))


def _encoder_bytes(recipe: Recipe) -> tuple[int, int]:
    """Return the bytes of autoencoder, image and sound encoder, and of the text encoders."""
    autoencoders = _PARAMETERS | {name: each.parameters for name, each in registry.AUTOENCODERS.items()}
    texts = _PARAMETERS | {name: each.parameters for name, each in registry.TEXT_ENCODERS.items()}
    images = (4 if recipe.autoencoder.dtype == "float32" else 2) * autoencoders[recipe.autoencoder.name]
    if (kind := components.conditioning(recipe.model).shown.encoder) is not None:
        images += 4 * IMAGE_ENCODERS[kind].parameters
    if recipe.sound is not None:
        images += 4 * components.sound_facts(recipe.sound).parameters
    return images, 0 if recipe.trains_text_encoders else 2 * texts[recipe.text_encoder.name]
