"""Each way in which two dtypes meet that must not is found, by the path of the module; none where there is none."""

from __future__ import annotations

import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from refused import refused
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from reelworks.core.errors import UserError
from reelworks.data.distributed.contract import Contract, Role
from reelworks.models.autoencoders.opensora import CONTRACT as HALF_OVERFLOWS
from reelworks.models.precision import audit
from reelworks.models.precision.audit import guard
from reelworks.models.precision.boundary import DtypeBoundary, DtypeError, check_contract

BF16, F32 = torch.bfloat16, torch.float32
ROLES = {"latent": Role.LATENT, "time": Role.TIME, "width": Role.GEOMETRY, "mask": Role.MASK}


@dataclass(frozen=True)
class Inputs:
    latent: Tensor
    time: Tensor
    width: Tensor
    mask: Tensor


class Times(nn.Module):
    """A time as two sines, then a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(2, 4)
        self.prepare: Callable[[Tensor], Tensor] = lambda value_B: value_B

    def forward(self, value_B: Tensor) -> Tensor:
        angle_B = self.prepare(value_B)[:, None] / 1000
        waves_B2 = torch.cat([angle_B.sin(), angle_B.cos()], dim=1)
        return self.proj(waves_B2.to(self.proj.weight.dtype))


class Masked(nn.Module):
    """Frames that a mask hides become 0."""

    def __init__(self) -> None:
        super().__init__()
        self.hide: Callable[[Tensor, Tensor], Tensor] = lambda x, mask: x.masked_fill(
            ~mask[:, None, :, None, None], 0.0
        )

    def forward(self, x_BCTHW: Tensor, mask_BT: Tensor) -> Tensor:
        return self.hide(x_BCTHW, mask_BT)


class Block(nn.Sequential):
    """Layers, with autocast or without."""

    raw = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.raw:
            return super().forward(x)
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.bfloat16())


class Toy(nn.Module):
    """Each kind of layer once."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv3d(3, 4, 1)
        self.times, self.sizes = Times(), Times()
        self.masked = Masked()
        self.norm = nn.LayerNorm(4)
        self.block = Block(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 3))
        self.register_buffer("scale", torch.ones(3))
        self.before: dict[str, Callable[[Tensor], Tensor]] = {}

    def forward(self, inputs: Inputs) -> Tensor:
        change = self.before
        x = self.patch(change.get("patch", _same)(inputs.latent))
        x = self.masked(x, inputs.mask)
        x = x + (self.times(inputs.time) + self.sizes(inputs.width))[:, :, None, None, None]
        x = self.norm(change.get("norm", _same)(x.movedim(1, -1)))
        x = self.block(change.get("block", _same)(x)) * self.scale.to(x.dtype)
        return change.get("out", _same)(x.movedim(-1, 1))


def _same(value: Tensor) -> Tensor:
    return value


@dataclass
class Denoiser:
    module: nn.Module
    contract: Contract

    def predict(self, inputs: Inputs) -> Tensor:
        return self.module(inputs)


def denoiser(storage: torch.dtype = BF16) -> Denoiser:
    contract = Contract(storage, BF16, master=F32, reduction=F32, output=F32, roles=ROLES)
    return Denoiser(Toy().to(storage), contract)


def inputs(**changes: Tensor) -> Inputs:
    made = Inputs(
        latent=torch.zeros(2, 3, 2, 4, 4),
        time=torch.full((2,), 999.0),
        width=torch.full((2,), 854.0),
        mask=torch.ones(2, 2, dtype=torch.bool),
    )
    return dataclasses.replace(made, **changes)


def faults(made: Denoiser, *, sharded: bool = False, **changes: Tensor) -> list[DtypeError]:
    units = [made.module.block] if sharded else []
    return list(audit.faults(made, [inputs(**changes)], sharded=sharded, units=units))


def before(place: str, change: Callable[[Tensor], Tensor]) -> Callable[[Denoiser], None]:
    def plant(made: Denoiser) -> None:
        made.module.before[place] = change

    return plant


def autocast_off(made: Denoiser) -> None:
    made.module.block.raw = True


def prepare(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Denoiser], None]:
    def plant(made: Denoiser) -> None:
        made.module.get_submodule(name).prepare = change

    return plant


def hide(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Denoiser], None]:
    def plant(made: Denoiser) -> None:
        made.module.masked.hide = change

    return plant


def float64_buffer(made: Denoiser) -> None:
    made.module.scale = made.module.scale.double()


def half_buffer(made: Denoiser) -> None:
    made.module.scale = made.module.scale.half()


def half_parameter(made: Denoiser) -> None:
    made.module.norm.half()


def hook(change: Callable[[Tensor], Tensor]) -> Callable[[Denoiser], None]:
    """A hook that somebody left on the first layer of the block."""

    def plant(made: Denoiser) -> None:
        made.module.block[0].register_forward_hook(lambda _module, _inputs, out: change(out))

    return plant


def products(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Denoiser], None]:
    """A product of the block's first layer in another way."""

    def plant(made: Denoiser) -> None:
        made.module.block[0].forward = functools.partial(_product, made.module.block[0].weight, change)

    return plant


def _product(weight: Tensor, change: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    return change(x, weight.to(x.device)).to(x.dtype)


def autocast_on(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    def run(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return functional.linear(x, weight)

    return run


def as_half(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x.half(), weight.half())


def as_float8(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.to(torch.float8_e4m3fn).T


def added_mask(x: Tensor, mask_BT: Tensor) -> Tensor:
    rows = x.flatten(2).mT
    bias = mask_BT.to(x.dtype)[:, None].repeat_interleave(x[0, 0, 0].numel(), dim=2)
    return functional.scaled_dot_product_attention(rows, rows, rows, attn_mask=bias).mT.reshape(x.shape)


def complex_table(dtype: torch.dtype) -> Callable[[Denoiser], None]:
    def plant(made: Denoiser) -> None:
        made.module.register_buffer("turns", torch.ones(4).to(dtype))

    return plant


# What is planted, dtype of the parameters, path that must be named, the dtype found.
FAULTS = {
    "float32 into Conv3d": (before("patch", torch.Tensor.float), BF16, "patch", F32),
    "float32 into LayerNorm": (before("norm", torch.Tensor.float), BF16, "norm", F32),
    "float32 into Linear": (before("block", torch.Tensor.float), BF16, "block.0", F32),
    "time rounded inside": (prepare("times", torch.Tensor.bfloat16), F32, "times", BF16),
    "size rounded inside": (prepare("sizes", lambda v: (v / 2).to(BF16) * 2), F32, "sizes", BF16),
    "integer mask as bits": (hide(lambda x, m: x * ~m.long()[:, None, :, None, None]), BF16, "masked", torch.int64),
    "integer mask as places": (hide(lambda x, m: x[:, :, m[0].long()]), BF16, "masked", torch.int64),
    "integer mask as a mask": (hide(lambda x, m: x.masked_fill(m.int()[:, None, :, None, None], 0)), BF16, "masked", None),
    "float64 into a layer": (before("block", torch.Tensor.double), F32, "block.0", torch.float64),
    "float64 returned": (hide(lambda x, _: x.double()), F32, "masked", torch.float64),
    "autocast off": (autocast_off, F32, "block.0", BF16),
    "output of no declared dtype": (before("out", torch.Tensor.half), BF16, "Toy", torch.float16),
    "time into a layer": (prepare("times", lambda v: functional.linear(v[:, None], v.new_ones(1, 1))[:, 0]), F32, "times", BF16),
    "mask that attention adds": (hide(added_mask), F32, "masked", BF16),
    "hook that halves": (hook(lambda out: out.half().float()), F32, "block.0", torch.float16),
    "product in float16": (products(as_half), F32, "block.0", torch.float16),
    "autocast to float16": (products(autocast_on(torch.float16)), F32, "block.0", torch.float16),
    "complex table of float64": (complex_table(torch.complex128), F32, "turns", torch.complex128),
    "float64 buffer": (float64_buffer, F32, "scale", torch.float64),
    "float16 buffer": (half_buffer, BF16, "scale", torch.float16),
    "float16 parameter": (half_parameter, F32, "norm.weight", torch.float16),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str) -> None:
    """By the path of the module in which it lies, with the dtype that is there and what to do."""
    plant, storage, path, found = FAULTS[name]
    made = denoiser(storage)
    plant(made)
    (first, *_) = faults(made)
    assert (first.field, first.found) == (path, found)
    assert first.remedy
    with pytest.raises(DtypeError, match=f"^{path}: "):
        audit.audit(made, [inputs()])


def prepare_proj(made: Denoiser) -> None:
    made.module.times.proj.register_forward_hook(lambda _m, _i, out: out.bfloat16().float())


# Of a model that computes in float32, which bfloat16 is below.
EXACT = {
    "hook that rounds": (hook(lambda out: out.bfloat16().float()), "block.0", BF16),
    "embedded time rounded": (prepare_proj, "times.proj", BF16),
    "latents rounded": (before("block", lambda x: x.bfloat16().float()), "Toy", BF16),
    "product in bfloat16": (products(lambda x, w: x.bfloat16() @ w.bfloat16().T), "block.0", BF16),
    "product in float8": (products(as_float8), "block.0", torch.float8_e4m3fn),
    "autocast left on": (products(autocast_on(BF16)), "block.0", BF16),
}


@pytest.mark.parametrize("name", EXACT)
def test_bfloat16_within_float32_is_named(name: str) -> None:
    """Without numbers and with them, whether it is computed or only rounded on the way; of bfloat16 it is no fault."""
    plant, path, found = EXACT[name]
    made = denoiser(F32)
    plant(made)
    assert faults(made) == []
    made.contract = dataclasses.replace(made.contract, compute=F32)
    (fault,) = faults(made)
    assert (fault.field, fault.found, fault.declared) == (path, found, F32)
    with pytest.raises(DtypeError, match=f"^{path}: "), audit.watched(made) as run:
        run(inputs())


def test_what_is_wider_than_declared_is_no_fault() -> None:
    """A hook that upcasts costs time and memory, and no digit."""
    made = denoiser(F32)
    hook(torch.Tensor.float)(made)
    assert faults(made) == []


def test_a_table_that_is_no_buffer_runs_without_numbers() -> None:
    """It is found by what it makes of a float32, not by an error of devices."""
    made = denoiser(F32)
    made.module.block.table = torch.ones(4)
    made.module.block.register_forward_pre_hook(lambda module, args: (args[0] * module.table,))
    assert faults(made) == []
    made.module.block.table = torch.ones(4, dtype=torch.float64)
    (fault,) = faults(made)
    assert (fault.field, fault.found) == ("block.0", torch.float64)


def test_a_watched_pass_holds_nothing_that_the_model_lets_go() -> None:
    """Tensors are followed without being kept: memory at the start is that of training."""
    made, seen = denoiser(F32), []
    made.module.norm.register_forward_hook(lambda _m, _i, out: seen.append(weakref.ref(out)))
    with torch.no_grad(), audit.watched(made) as run:
        run(inputs())
        assert seen[0]() is None


def test_a_watched_pass_holds_nothing_of_a_block_that_was_recomputed() -> None:
    """The error by which torch ends a recomputation has the block's tensors, which are gone with the backward pass."""
    made, seen = denoiser(F32), []
    made.module.block.forward = functools.partial(checkpoint, made.module.block.forward, use_reentrant=False)
    made.module.block[1].register_forward_hook(lambda _m, _i, out: seen.append(weakref.ref(out)))
    gc.disable()
    try:
        with audit.watched(made) as run:
            torch.autograd.backward(run(inputs()).sum())
            assert len(seen) == 2, "the block ran again"
            assert [kept() for kept in seen] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize(("role", "name"), [("time", "time"), ("geometry", "width")])
def test_what_arrives_rounded_is_named(role: str, name: str) -> None:
    """A time or size in bfloat16 is a fault of the caller, by the name of the input."""
    (fault,) = faults(denoiser(), **{name: torch.full((2,), 854.0, dtype=BF16)})
    assert (fault.field, fault.found, fault.declared) == (name, BF16, F32)
    assert role in fault.problem


def test_a_unit_of_fsdp_with_two_dtypes_is_named() -> None:
    """By the parameter that differs; without sharding a trained parameter may have the master's dtype."""
    made = denoiser()
    made.module.block.append(nn.Linear(3, 3))
    sharded = faults(made, sharded=True)
    assert [fault.field for fault in sharded] == ["block.3.weight", "block.3.bias"]
    assert {(fault.found, fault.declared) for fault in sharded} == {(F32, BF16)}


def test_an_autoencoder_in_float16_that_overflows_is_refused() -> None:
    """Whether it is stored or computed in it."""
    for name in ("storage", "compute"):
        half = dataclasses.replace(HALF_OVERFLOWS, **{name: torch.float16})
        with pytest.raises(UserError, match=rf"autoencoder.{name} = 'float16': .* become infinite"):
            check_contract(half, "autoencoder")
    check_contract(HALF_OVERFLOWS, "autoencoder")


def test_each_place_is_told_once_and_all_shapes_are_looked_at() -> None:
    """A fault of every shape is one fault, and one of another kind is told beside it."""
    made = denoiser(F32)
    half_parameter(made)
    made.module.times.prepare = torch.Tensor.bfloat16
    shapes = [inputs(), inputs(latent=torch.zeros(2, 3, 2, 6, 4))]
    found = list(audit.faults(made, shapes))
    assert [fault.field for fault in found] == ["norm.weight", "norm.bias", "times"]


class Blocks(Toy):
    """Equal blocks on a row of tokens, and something of one shape alone behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, inputs: Inputs) -> Tensor:
        x = self.patch(inputs.latent)
        rows = x.flatten(2).transpose(1, 2).contiguous()
        for block in self.blocks:
            rows = block(rows)
        if x.shape[-1] > x.shape[-2]:
            rows = rows.half().to(rows.dtype)
        return rows[..., :3].transpose(1, 2).unflatten(2, x.shape[2:]) * 1


def test_a_fault_behind_the_blocks_is_found_whichever_shape_of_as_many_tokens_came_before() -> None:
    """Blocks that need not run again for another shape give tensors whose role is known all the same."""
    made = denoiser()
    made.module = Blocks().to(BF16)
    for shapes in ([(4, 6), (6, 4)], [(6, 4), (4, 6)]):
        found = list(audit.faults(made, [inputs(latent=torch.zeros(2, 3, 2, *shape)) for shape in shapes]))
        assert [fault.found for fault in found] == [torch.float16]


class Keeping(nn.Linear):
    """A block that keeps its output, as one with a cache does."""

    def forward(self, rows: Tensor) -> Tensor:
        self.kept = super().forward(rows)
        return self.kept


@pytest.mark.parametrize("fault", [False, True])
def test_blocks_that_keep_something_in_themselves_are_audited_one_by_one(fault: bool) -> None:
    """What reads it afterwards finds it in each."""
    made = denoiser()
    made.module = Blocks()
    made.module.blocks = nn.ModuleList([Keeping(4, 4), Keeping(4, 4)])
    made.module.to(BF16)
    made.module.register_forward_hook(lambda module, _i, out: out + sum(b.kept.sum() for b in module.blocks))
    if fault:
        made.module.blocks[1].float()
    assert [found.field for found in faults(made)] == (["blocks.1"] if fault else [])


def test_a_shape_that_the_network_does_not_take_is_told_with_its_sizes() -> None:
    made = denoiser()
    before("patch", lambda x: x.unflatten(-1, (2, -1)).flatten(-2))(made)
    shapes = [inputs(), inputs(latent=torch.zeros(2, 3, 2, 4, 5))]
    with refused("shape-fails", "bucket", says=r"latents of 3 × 2 × 4 × 5: RuntimeError: unflatten"):
        list(audit.faults(made, shapes))


class Shifted(nn.Linear):
    """A block with a buffer, which its output has the dtype of if that is the wider one."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) + self.shift


def test_blocks_that_differ_in_a_buffer_alone_run_separately() -> None:
    """The second one widens its output, which the third cannot take."""
    made = denoiser()
    made.module = Blocks()
    made.module.blocks = nn.ModuleList([Shifted(), Shifted(), Shifted()])
    made.module.to(BF16)
    made.module.blocks[1].shift = torch.zeros(4)
    assert [(fault.field, fault.found) for fault in faults(made)] == [("blocks.2", F32)]


def test_a_rounded_time_that_nothing_uses_is_no_fault() -> None:
    """As where the exact one is put in its place."""
    made = denoiser()
    made.module.times.prepare = lambda value_B: (value_B.bfloat16(), value_B)[1]
    assert faults(made) == []


def test_the_real_pass_names_them_too() -> None:
    """On real tensors, forward and backward, the guard finds what the audit finds without numbers."""
    for name in ("float32 into Conv3d", "float64 into a layer", "integer mask as a mask", "autocast off"):
        plant, storage, path, _ = FAULTS[name]
        made = denoiser(storage)
        plant(made)
        with pytest.raises(DtypeError, match=f"^{path}: "), guard(made.module):
            DtypeBoundary(made)(inputs()).sum().backward()


@pytest.mark.parametrize("storage", [BF16, F32])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_without_fault_has_none(storage: torch.dtype, sharded: bool) -> None:
    """On neither path that training can take, without numbers and with them."""
    assert faults(denoiser(storage), sharded=sharded) == []
    with guard((made := denoiser(storage)).module):
        DtypeBoundary(made)(inputs()).sum().backward()
