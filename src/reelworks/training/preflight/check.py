"""Check a recipe for `reelworks check`: dtypes, casts, memory, and parts that do not fit together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.core.units import plural
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.data.distributed import layout, mesh
from reelworks.data.distributed.contract import Contract, Role, name_of
from reelworks.data.distributed.layout import Layout
from reelworks.data.distributed.mesh import World
from reelworks.models import components, recompute
from reelworks.models.adapters import frozen
from reelworks.models.api import Denoiser
from reelworks.models.attention import attention
from reelworks.models.attention.attention_audit import AttentionReport
from reelworks.models.precision import audit
from reelworks.models.precision.boundary import DtypeError
from reelworks.models.sequence import sequence_limits
from reelworks.training.assembly import build, preview_model
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.memory import dry_run, estimate, memory, meter, recomputation
from reelworks.training.memory.dry_run import Encoder
from reelworks.training.memory.estimate import size
from reelworks.training.preflight import kernels, weights_check
from reelworks.training.preflight.weights_check import WeightsReport
from reelworks.training.recipe import dataset, device_limits, release_notes
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import optimizer_names
from reelworks.training.step.state import TrainState


@dataclass(frozen=True)
class Cast:
    """The dtype that an input of a component arrives in, and the dtype that it is cast to."""

    input: str
    role: str
    from_: str
    to: str


@dataclass(frozen=True)
class ComponentReport:
    """Dtypes, numbers of all and of trained parameters, and device of one component.

    Attributes:
        dtypes: Declared dtypes by purpose; None if the component has no use for one.
        base: How the weights of a frozen base are stored, if they are quantized.
        casts: Casts of the inputs.
    """

    component: str
    name: str
    dtypes: dict[str, str | None] = field(metadata=results.INLINED)
    base: str | None
    parameters: int
    trained: int
    casts: list[Cast]
    device: str


@dataclass(frozen=True)
class RehearsedBucket:
    """A bucket that was run forward and backward, with the peak memory of a rank in it beside weights and gradients.

    Where ranks share clips, it was run with as many tokens as one of them has.

    Attributes:
        held_bytes: What else the device takes: memory of CUDA, and what torch's allocator holds beyond the tensors.
        recomputed: What the backward pass computes again.
    """

    bucket: str
    batch_size: int
    activations_bytes: int
    held_bytes: int
    recomputed: str
    seconds: float


@dataclass(frozen=True)
class MemoryReport:
    """Memory of one process in bytes: on its device by purpose, and on the CPU."""

    parts: dict[str, int] = field(metadata=results.INLINED)
    host: int
    JSON_KEYS: ClassVar = ("parts", "total", "host")

    @property
    def total(self) -> int:
        """Sum of the memory on the device."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Violation:
    """A dtype that is not the declared one, or another contradiction, with the path of its module."""

    module: str | None
    problem: str
    found: str | None
    declared: str | None
    remedy: str

    @classmethod
    def from_error(cls, fault: UserError) -> Violation:
        """Return what an error tells."""
        found, declared = (fault.found, fault.declared) if isinstance(fault, DtypeError) else (None, None)
        return cls(fault.field, fault.problem, _name(found), _name(declared), fault.remedy)


@dataclass(frozen=True)
class CheckReport:
    """Results of checking a recipe.

    Attributes:
        world: Number of processes that memory is estimated for.
        layout: How they would share the weights, and why.
        shapes: Number of shapes that were run on the meta device.
        rehearsed: Buckets that were run on `device`; none if there are violations.
        attention: Comparison of attention kernels with exact attention on `device`; None if there are violations.
        weights: What the model's weights predict, if it was asked for.
    """

    device: str
    world: int
    layout: str
    shapes: int
    components: list[ComponentReport]
    rehearsed: list[RehearsedBucket]
    attention: AttentionReport | None
    weights: WeightsReport | None
    memory: MemoryReport
    violations: list[Violation]
    warnings: list[str]


def check_recipe(recipe: Recipe, table: BucketTable, world: int = 1, *, weights: bool = False) -> CheckReport:
    """Run the shape of every bucket on the meta device, and the largest bucket of each resolution for real.

    Dtypes are checked and memory is estimated for `world` processes; only this one is used. With `weights`, it is told
    whether they predict as trained ones do.

    Raises:
        UserError: Weights cannot be loaded, a contract or the optimizer cannot train, or memory does not suffice.
    """
    recipe.parallel.data_ranks(world)
    sequence_limits.require_buckets(recipe.model, table)
    optimizer_names.require(recipe.train.optimizer, layout.fixed(recipe.parallel, world, local_ranks(world)))
    recipe = recomputation.settled(recipe, table, recomputation.cards_for(recipe, world))
    table = dataset.bucket_table(recipe)[1]
    with mesh.join(offload=recipe.parallel.offload) as this_process, attention.prefer(recipe.model.attention):
        return _check(recipe, table, this_process, world, weights=weights)


def _check(recipe: Recipe, table: BucketTable, this_process: World, world: int, *, weights: bool) -> CheckReport:
    device_limits.require(recipe, this_process.device)
    build.require_sources(recipe)
    preview_model.require_layers(recipe)
    denoiser, encoder = build.denoiser(recipe, this_process.home), build.encoder(recipe, this_process.device)
    shapes = dry_run.examples(denoiser, encoder, table)
    logger.info(f"checking dtypes: {plural(len(shapes), 'shape')} on the meta device")
    units = denoiser.sharding().units
    violations: list[UserError] = []
    with dry_run.without_numbers(denoiser):
        violations += audit.faults(denoiser, shapes, sharded=world > 1 or this_process.shards, units=units)
    violations += _encoder_faults(encoder, table)
    planned, reason = build.choose_layout(
        recipe, denoiser, ranks=world, local_ranks=local_ranks(world), device_bytes=this_process.device_bytes
    )
    compared = None
    if not violations:
        if this_process.device.type == "cuda":  # what needs a GPU may be checked without one
            attention.use(denoiser, recipe.model.attention, this_process.device)
        # A CPU takes long for all, and trains with kernels that were never found wrong.
        buckets = largest_of_each(table) if this_process.device.type == "cpu" else table.buckets
        logger.info("comparing attention kernels with exact attention")
        inputs = kernels.examples(recipe, denoiser, encoder, buckets)
        compared = kernels.run(recipe, denoiser, inputs, this_process)
        mesh.shard(
            denoiser.module, units, denoiser.contract, this_process, Layout.from_strategy("fsdp", this_process.size)
        )
        violations += [kernels.refusal(recipe, fault) for fault in compared.faults if fault.instead is None]
    state = TrainState.start(denoiser, recipe.train)
    rehearsed: list[RehearsedBucket] = []
    if compared is not None and not violations:
        try:
            with compared.replaced():
                rehearsed += _rehearse(recipe, denoiser, encoder, state, table)
        except DtypeError as fault:
            violations.append(fault)
    predicted = weights_check.run(recipe, denoiser, encoder, table.buckets) if weights and not violations else None
    if predicted is not None and predicted.fault is not None:
        violations.append(predicted.fault)
    note = None if (told := release_notes.licence_note(recipe)) is None else f"licence of {told}"
    largest = max(rehearsed, key=lambda one: one.activations_bytes + one.held_bytes, default=None)
    return CheckReport(
        device=str(this_process.device),
        world=world,
        layout=f"{planned} ({planned.strategy}): {reason}",
        shapes=len(shapes),
        components=_components(recipe, denoiser, encoder, str(this_process.device)),
        rehearsed=rehearsed,
        attention=compared,
        weights=predicted,
        memory=_memory(recipe, state, encoder, rehearsed=largest, shards=planned.shards),
        violations=[Violation.from_error(fault) for fault in violations],
        warnings=[
            *(warning for warning in (release_notes.distilled_warning(recipe), note) if warning is not None),
            *(compared.fault_lines() if compared else ()),
        ],
    )


def local_ranks(world: int) -> int:
    """Return the ranks of a node if `world` are started on nodes like this one; without GPUs all run on one."""
    return min(torch.cuda.device_count() or world, world)


def largest_of_each(table: BucketTable) -> list[Bucket]:
    """Return the bucket of each resolution whose micro-batch gives each rank the most tokens."""
    return [*memory.largest((table.entries[b.entry].resolution, b) for b in table.buckets if b.batch_size).values()]


def _rehearse(
    recipe: Recipe, denoiser: Denoiser, encoder: FrozenEncoders, state: TrainState, table: BucketTable
) -> Iterator[RehearsedBucket]:
    # Memory is measured on the meta device if possible: there FSDP's gathered weights are not counted as activations.
    on_meta = estimate.network(recipe) if denoiser.runs_on_meta else None
    for bucket in largest_of_each(table):
        began, clips = time.monotonic(), bucket.batch_size * recipe.clips_per_place
        recomputed = memory.recomputation(recipe, bucket)
        share = memory.share(bucket, components.geometry(recipe.model, recipe.autoencoder))
        logger.info(f"running {bucket.name} forward and backward with {plural(clips, 'clip')}")
        counted = meter.Meter(state.module) if on_meta is None else None
        level = recompute.of_eager_pass(recomputed, compiles=recipe.train.compile)
        with recompute.by(level), counted or nullcontext():
            dry_run.rehearse(denoiser, encoder, state, share, clips=clips)
        peak = counted.peak if counted is not None else 0
        if on_meta is not None:
            peak = estimate.one_pass(recipe, on_meta, bucket).peak_bytes
        held = memory.reserve(peak, recomputed)
        told = recomputation.to_text(recomputed)
        yield RehearsedBucket(bucket.name, bucket.batch_size, peak, held, told, time.monotonic() - began)


def _encoder_faults(encoder: FrozenEncoders, table: BucketTable) -> list[DtypeError]:
    """Check the stored dtypes of the encoders, and those returned for an empty caption, a black clip and image."""
    shape = min(table.buckets, key=lambda b: b.tokens).shape
    video = torch.zeros(1, 3, shape.num_frames, shape.height, shape.width, device=encoder.device)
    with torch.no_grad():
        returned = {"autoencoder": encoder.autoencoder.encode(video), "text": encoder.text_encoder.encode([""]).tokens}
    if encoder.image_encoder is not None:
        image = torch.zeros(1, shape.height, shape.width, 3, dtype=torch.uint8)
        returned["image_encoder"] = encoder.image_encoder.encode(image)
    faults = list(dry_run.faults_of_encoders(encoder))
    for name, component in dry_run.encoders(encoder).items():
        declared, dtype = component.contract.output, returned[name].dtype
        if dtype != declared:
            faults.append(
                DtypeError(
                    f"it returns {name_of(dtype)}, and declares {name_of(declared)}",
                    field=name,
                    remedy="return the declared dtype, or declare the other one",
                    found=dtype,
                    declared=declared,
                )
            )
    return faults


def _components(recipe: Recipe, denoiser: Denoiser, encoder: FrozenEncoders, device: str) -> list[ComponentReport]:
    autoencoder, text, image = encoder.autoencoder, encoder.text_encoder, encoder.image_encoder
    text_device = device if recipe.text_encoder.device == "auto" else "cpu"
    reports = [
        _component("denoiser", recipe.model.name, denoiser.contract, [denoiser.module], device),
        _component("autoencoder", recipe.autoencoder.name, autoencoder.contract, dry_run.networks(autoencoder), device),
        _component("text encoder", recipe.text_encoder.name, text.contract, dry_run.networks(text), text_device),
    ]
    if image is not None:
        name = str(encoder.conditioning.shown.encoder)
        reports.append(_component("image encoder", name, image.contract, dry_run.networks(image), device))
    return reports


def _component(kind: str, name: str, contract: Contract, modules: list[nn.Module], device: str) -> ComponentReport:
    parameters = [p for module in modules for p in module.parameters()]
    count = sum(p.numel() for p in parameters) + sum(map(frozen.count, modules))
    trained = sum(p.numel() for p in parameters if p.requires_grad) if contract.master else 0
    keys = ("storage", "compute", "master", "reduction", "output")
    dtypes = {key: _name(getattr(contract, key)) for key in keys}
    # All inputs but masks are prepared in float32.
    casts = [
        Cast(key, str(role), "bool" if role is Role.MASK else "float32", name_of(contract.dtype_of(role)))
        for key, role in contract.roles.items()
    ]
    return ComponentReport(kind, name, dtypes, contract.base, count, trained, casts, device)


def _name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else name_of(dtype)


def _memory(
    recipe: Recipe, state: TrainState, encoder: FrozenEncoders, *, rehearsed: RehearsedBucket | None, shards: int
) -> MemoryReport:
    """Sum up memory by purpose, for `shards` processes that share the network.

    Each holds all of a quantized base, and whole other weights while they are in use.
    """
    parameters = list(state.module.parameters())
    trained = [p for p in parameters if p.requires_grad]
    quantized = [value for layer in frozen.quantized_layers(state.module) for value in layer.buffers()]
    ids = set(map(id, quantized))
    buffers = [value for value in state.module.buffers() if id(value) not in ids]
    in_use = estimate.bytes_in_use(state.module, state.blocks)
    parts = {
        "weights": size([*parameters, *buffers]) // shards + in_use * (shards > 1),
        "quantized base": size(quantized),
        "master": 0,  # the optimizer updates the stored weights, without a master copy
        "gradients": size(trained) // shards,
        "optimizer": size(list(state.optimizer.tensors().values())) // shards,
        "ema": size(list(state.ema.values())) // shards,
        "encoders": 0,
        "activations": 0 if rehearsed is None else rehearsed.activations_bytes,
        "reserve": memory.reserve(0, False) if rehearsed is None else rehearsed.held_bytes,
    }
    host = 0
    if recipe.keeps_autoencoder:
        parts["encoders"] += _weights(encoder.autoencoder)
        if encoder.image_encoder is not None:
            parts["encoders"] += _weights(encoder.image_encoder)
    if recipe.keeps_text_encoder:
        text = _weights(encoder.text_encoder)
        if recipe.text_encoder.device == "auto":
            parts["encoders"] += text
        else:
            host += text
    if recipe.train.ema_device == "cpu" and not recipe.parallel.offload:
        host, parts["ema"] = host + parts["ema"], 0
    if recipe.parallel.offload:
        host += sum(parts.pop(name) for name in ("weights", "gradients", "optimizer", "ema"))
        parts = {"weights": in_use, **parts}
    return MemoryReport(parts, host)


def _weights(component: Encoder) -> int:
    return size([p for module in dry_run.networks(component) for p in module.parameters()])
