"""Check a recipe for `reelworks check`: dtypes, casts, memory, and parts that do not fit together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from reelworks.buckets.table import Bucket, BucketTable
from reelworks.distributed import mesh
from reelworks.distributed.mesh import World
from reelworks.encoders.encoders import LiveEncoder
from reelworks.models.api import Denoiser
from reelworks.models.lora import frozen
from reelworks.precision import audit
from reelworks.precision.boundary import DtypeError
from reelworks.precision.contract import Contract, Role, name_of
from reelworks.recipe.recipe import Recipe
from reelworks.train import build, lr_schedule, optimizer_names
from reelworks.train.preflight import dry_run, estimate, memory, meter
from reelworks.train.preflight.dry_run import Encoder
from reelworks.train.preflight.memory import size
from reelworks.train.state import TrainState

_DTYPES = ("storage", "compute", "master", "reduction", "output")


@dataclass(frozen=True)
class Cast:
    """Dtype that an input of a component arrives in, and that it is cast to."""

    input: str
    role: str
    arrives_in: str
    cast_to: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"input": self.input, "role": self.role, "from": self.arrives_in, "to": self.cast_to}


@dataclass(frozen=True)
class ComponentReport:
    """A model's dtypes, size and place.

    Attributes:
        kind: Of component: "denoiser", "autoencoder", ...
        name: In the recipe.
        contract: Its dtypes.
        parameters: Numbers in it.
        trained: Of those.
        casts: Of each input.
        device: Where it lies.
    """

    kind: str
    name: str
    contract: Contract
    parameters: int
    trained: int
    casts: list[Cast]
    device: str

    @property
    def dtypes(self) -> dict[str, str | None]:
        """Declared dtypes by purpose; None where the component has no use for one."""
        declared = {key: getattr(self.contract, key) for key in _DTYPES}
        return {key: None if dtype is None else name_of(dtype) for key, dtype in declared.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "component": self.kind,
            "name": self.name,
            **self.dtypes,
            "base": self.contract.base,
            "parameters": self.parameters,
            "trained": self.trained,
            "casts": [cast.to_json() for cast in self.casts],
            "device": self.device,
        }


@dataclass(frozen=True)
class RehearsedBucket:
    """A bucket that was run for real, forward and backward.

    Attributes:
        activations_bytes: Most that the pass held at a time.
    """

    bucket: str
    batch_size: int
    activations_bytes: int
    seconds: float


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of one process.

    Attributes:
        parts: On its device, by purpose.
        host: In CPU memory.
    """

    parts: dict[str, int]
    host: int

    @property
    def total(self) -> int:
        """All parts on the device."""
        return sum(self.parts.values())

    def to_json(self) -> dict[str, int]:
        """Plain values."""
        return {**self.parts, "total": self.total, "host": self.host}


@dataclass(frozen=True)
class CheckReport:
    """Findings about a recipe.

    Attributes:
        device: Where it was tried.
        world: Processes that memory is estimated for.
        shapes: Shapes that were tried without numbers.
        components: The network first.
        rehearsed: Buckets that were run for real; none where there are violations.
        memory: Of each process.
        violations: Dtypes that meet and must not.
    """

    device: str
    world: int
    shapes: int
    components: list[ComponentReport]
    rehearsed: list[RehearsedBucket]
    memory: MemoryReport
    violations: list[DtypeError]

    def to_json(self) -> dict[str, Any]:
        """Plain values; sizes are bytes of one process."""
        return {
            "device": self.device,
            "world": self.world,
            "shapes": self.shapes,
            "components": [component.to_json() for component in self.components],
            "rehearsed": [asdict(one) for one in self.rehearsed],
            "memory": self.memory.to_json(),
            "violations": [_violation(fault) for fault in self.violations],
        }


def check_recipe(recipe: Recipe, table: BucketTable, world: int = 1) -> CheckReport:
    """Try every bucket's shape without numbers, and the largest of each resolution for real.

    Args:
        recipe: What would be trained.
        table: Its buckets.
        world: Processes to audit and to estimate memory for; nothing is started but this one.

    Raises:
        UserError: Weights cannot be loaded, a contract or the optimizer cannot train, or memory does not suffice.
    """
    optimizer_names.require(recipe.train.optimizer, recipe.parallel.strategy, world)
    if recipe.train.lacks_end:
        raise lr_schedule.no_end(recipe.train)
    with mesh.join(offload=recipe.parallel.offload) as alone:
        return _check(recipe, table, alone, world)


def _check(recipe: Recipe, table: BucketTable, alone: World, world: int) -> CheckReport:
    build.require_sources(recipe)
    denoiser, encoder = build.denoiser(recipe, alone.home), build.encoder(recipe, alone.device)
    shapes = dry_run.examples(denoiser, encoder, table)
    units = denoiser.sharding().blocks
    found = list(audit.faults(denoiser, shapes, sharded=world > 1 or alone.shards, units=units))
    found += _of_encoders(encoder, table)
    if not found:
        mesh.shard(denoiser.module, units, denoiser.contract, alone, recipe.parallel.strategy)
    state = TrainState.start(denoiser, recipe.train)
    rehearsed: list[RehearsedBucket] = []
    if not found:
        try:
            rehearsed += _rehearse(recipe, denoiser, encoder, state, table)
        except DtypeError as fault:
            found.append(fault)
    shards = world if recipe.parallel.strategy == "fsdp" else 1
    activations = max((one.activations_bytes for one in rehearsed), default=0)
    return CheckReport(
        device=str(alone.device),
        world=world,
        shapes=len(shapes),
        components=_components(recipe, denoiser, encoder, alone),
        rehearsed=rehearsed,
        memory=_memory(recipe, state, encoder, units, activations=activations, shards=shards),
        violations=found,
    )


def largest_of_each(table: BucketTable) -> list[Bucket]:
    """Return of every resolution the bucket whose micro-batch has the most tokens."""
    best: dict[str, Bucket] = {}
    for bucket in sorted(table.buckets, key=lambda b: b.tokens * b.batch_size):
        if bucket.batch_size:
            best[table.entries[bucket.entry].resolution] = bucket
    return list(best.values())


def _rehearse(
    recipe: Recipe, denoiser: Denoiser, encoder: LiveEncoder, state: TrainState, table: BucketTable
) -> Iterator[RehearsedBucket]:
    """Run buckets for real, and count memory where no weights that come and go are among it: without numbers."""
    shadow = estimate.network(recipe) if denoiser.runs_on_meta else None
    for bucket in largest_of_each(table):
        began = time.monotonic()
        if shadow is None:
            with meter.counting(state.module) as real:
                dry_run.rehearse(denoiser, encoder, state, bucket)
            peak = real.peak
        else:
            dry_run.rehearse(denoiser, encoder, state, bucket)
            blank = dry_run.blank(encoder, bucket, bucket.batch_size, torch.device("meta"))
            peak = meter.measure_few_blocks(shadow, blank).peak_bytes
        yield RehearsedBucket(bucket.name, bucket.batch_size, peak, time.monotonic() - began)


def _of_encoders(encoder: LiveEncoder, table: BucketTable) -> list[DtypeError]:
    """Compare what the encoders hold, and what they return for an empty caption, one black clip and one black picture."""
    shape = min(table.buckets, key=lambda b: b.tokens).shape
    video = torch.zeros(1, 3, shape.num_frames, shape.height, shape.width, device=encoder.device)
    with torch.no_grad():
        returned = {
            "autoencoder": encoder.autoencoder.encode(video),
            "text": encoder.text_encoder.encode([""]).tokens,
        }
    if encoder.image_encoder is not None:
        picture = torch.zeros(1, shape.height, shape.width, 3, dtype=torch.uint8)
        returned["image_encoder"] = encoder.image_encoder.encode(picture)
    found = list(dry_run.faults_of_encoders(encoder))
    for name, component in dry_run.encoders(encoder).items():
        contract, dtype = component.contract, returned[name].dtype
        if dtype != contract.output:
            found.append(
                DtypeError(
                    f"it returns {name_of(dtype)}, and declares {name_of(contract.output)}",
                    field=name,
                    remedy="return the declared dtype, or declare the other one",
                    found=dtype,
                    declared=contract.output,
                )
            )
    return found


def _components(recipe: Recipe, denoiser: Denoiser, encoder: LiveEncoder, world: World) -> list[ComponentReport]:
    device = str(world.device)
    autoencoder, text, image = encoder.autoencoder, encoder.text_encoder, encoder.image_encoder
    reports = [
        _component("denoiser", recipe.model.name, denoiser.contract, [denoiser.module], device),
        _component_of_encoder("autoencoder", recipe.autoencoder.name, autoencoder, device),
        _component_of_encoder(
            "text encoder",
            recipe.text_encoder.name,
            text,
            device if recipe.text_encoder.device == "auto" else "cpu",
        ),
    ]
    if image is not None:
        name = str(encoder.conditioning.image_encoder)
        reports.append(_component_of_encoder("image encoder", name, image, device))
    return reports


def _component_of_encoder(kind: str, name: str, encoder: Encoder, device: str) -> ComponentReport:
    return _component(kind, name, encoder.contract, dry_run.networks(encoder), device)


def _component(kind: str, name: str, contract: Contract, modules: list[nn.Module], device: str) -> ComponentReport:
    parameters = [p for module in modules for p in module.parameters()]
    return ComponentReport(
        kind=kind,
        name=name,
        contract=contract,
        parameters=sum(p.numel() for p in parameters) + sum(map(frozen.count, modules)),
        trained=sum(p.numel() for p in parameters if p.requires_grad) if contract.master else 0,
        casts=[
            Cast(key, str(role), _arrives(role), name_of(contract.dtype_of(role)))
            for key, role in contract.roles.items()
        ],
        device=device,
    )


def _arrives(role: Role) -> str:
    """Everything is prepared in float32 but masks."""
    return "bool" if role is Role.MASK else "float32"


def _memory(
    recipe: Recipe,
    state: TrainState,
    encoder: LiveEncoder,
    units: Sequence[nn.Module],
    *,
    activations: int,
    shards: int,
) -> MemoryReport:
    """Count memory by purpose.

    Args:
        recipe: What would be trained; says what lies in CPU memory.
        state: What is trained.
        encoder: What stands beside it.
        units: Of the network, as they come from CPU memory where they do.
        activations: Bytes that a pass of the largest bucket holds.
        shards: Processes that share the network; each has all of a quantised base.
    """
    parameters = list(state.module.parameters())
    trained = [p for p in parameters if p.requires_grad]
    codes = [value for layer in frozen.quantized_layers(state.module) for value in layer.buffers()]
    known = set(map(id, codes))
    buffers = [value for value in state.module.buffers() if id(value) not in known]
    parts = {
        "weights": size([*parameters, *buffers]) // shards,
        "quantized base": size(codes),
        # The optimizer updates what is stored; a master copy beside it would stand here.
        "master": 0,
        "gradients": size(trained) // shards,
        "optimizer": size(list(state.optimizer.tensors().values())) // shards,
        "ema": size(list(state.ema.values())) // shards,
        "encoders": _weights(encoder.autoencoder),
        "activations": activations,
    }
    if encoder.image_encoder is not None:
        parts["encoders"] += _weights(encoder.image_encoder)
    host, text = 0, _weights(encoder.text_encoder)
    if recipe.text_encoder.device == "auto":
        parts["encoders"] += text
    else:
        host += text
    if recipe.parallel.offload:
        lying = ("weights", "gradients", "optimizer", "ema")
        host += sum(parts.pop(name) for name in lying)
        parts = {"weights": memory.in_use(state.module, units), **parts}
    return MemoryReport(parts, host)


def _weights(component: Encoder) -> int:
    return size([p for module in dry_run.networks(component) for p in module.parameters()])


def _violation(fault: DtypeError) -> dict[str, Any]:
    found, declared = ((None if d is None else name_of(d)) for d in (fault.found, fault.declared))
    return {
        "module": fault.field,
        "problem": fault.problem,
        "found": found,
        "declared": declared,
        "remedy": fault.remedy,
    }
