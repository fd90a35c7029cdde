"""Every input is cast by its role; what cannot work is refused before it runs; what is missed is named."""

import dataclasses

import pytest
import torch
from refused import refused
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from reelworks.core.errors import UserError
from reelworks.data.distributed.contract import Contract
from reelworks.models import factory
from reelworks.models.api import INPUT_ROLES, DenoiserInputs, SoundInputs
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.precision import boundary, tensors
from reelworks.models.precision.audit import audit, guard
from reelworks.models.precision.boundary import DtypeBoundary, DtypeError

BF16, F32 = torch.bfloat16, torch.float32


def contract(**changes):
    usual = Contract(BF16, BF16, master=F32, reduction=F32, output=F32, roles=INPUT_ROLES)
    return dataclasses.replace(usual, **changes)


def build(storage=BF16, compute=BF16, depth=1):
    return factory.build_denoiser(
        ModelConfig(name="stdit3-tiny", hidden_size=32, depth=depth, num_heads=2),
        autoencoder=AutoencoderConfig(stride=2),
        text=TextEncoderConfig(dim=8, max_length=4),
        device="cpu",
        seed=0,
        storage=storage,
        compute=compute,
    )


def inputs(B=2, T=2, H=4, W=6):
    g = torch.Generator().manual_seed(7)
    return DenoiserInputs(
        latent=torch.randn(B, 12, T, H, W, generator=g),
        time=torch.full((B,), 999.0),
        text=torch.randn(B, 4, 8, generator=g),
        text_mask=torch.ones(B, 4, dtype=torch.int64),
        pooled=torch.zeros(B, 0),
        guidance=torch.ones(B),
        frame_mask=torch.ones(B, T, dtype=torch.bool),
        fps=torch.full((B,), 23.976),
        height=torch.full((B,), 480),
        width=torch.full((B,), 854),
        drop_text=torch.zeros(B, dtype=torch.bool),
    )


def test_casting_by_role():
    latent = torch.zeros(2, 12, 1, 2, 2)
    given = dict.fromkeys(("control", "first_frame", "image", "condition"), latent) | {"crop": torch.zeros(2, 4)}
    sound = SoundInputs(latent, torch.zeros(2), torch.ones(2, 1))
    example = dataclasses.replace(inputs(), sources=(latent,), source_sounds=(latent,), sound=sound, **given)
    cast = {name: boundary.cast_input(name, value, contract()) for name, value in tensors.named(example)}
    assert cast.keys() == INPUT_ROLES.keys()
    assert {name for name, value in cast.items() if value.dtype == BF16} == {
        "latent", "text", "pooled", "control", "sources", "source_sounds", "first_frame", "image", "condition", "sound_latent",
    }  # fmt: skip
    assert {name for name, value in cast.items() if value.dtype == F32} == {
        "time", "guidance", "fps", "height", "width", "crop", "sound_time",
    }  # fmt: skip
    assert {name for name, value in cast.items() if value.dtype == torch.bool} == {
        "text_mask", "frame_mask", "drop_text", "sound_mask",
    }  # fmt: skip


def test_an_input_without_a_role_is_refused():
    with refused("dtype-mismatch", "depth", says="depth: this input has no role"):
        boundary.cast_input("depth", torch.zeros(1), contract())


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_a_time_that_is_already_rounded_is_refused(dtype):
    """Also to a dtype that no recipe can name: it comes from whoever calls the network."""
    says = f"time: an input of role time arrives as {str(dtype).removeprefix('torch.')}, already rounded"
    with refused("dtype-mismatch", "time", says=says):
        boundary.cast_input("time", torch.tensor([999.0], dtype=dtype), contract())


@pytest.mark.parametrize("storage", [BF16, F32])
def test_float32_latents_into_a_bfloat16_model_train_through_the_boundary(storage):
    denoiser = build(storage=storage)
    batch = inputs()
    with guard(denoiser.module):
        out = DtypeBoundary(denoiser)(batch)
    assert (out.dtype, out.shape) == (F32, batch.latent.shape)
    out.square().mean().backward()
    grads = [p.grad for p in denoiser.module.parameters()]
    assert all(g is not None and g.dtype == storage and torch.isfinite(g).all() for g in grads)
    reference = DtypeBoundary(build(F32, F32))(batch)
    assert (out - reference).norm() < 0.03 * reference.norm()


@pytest.mark.parametrize("storage", [BF16, F32])
def test_time_and_size_reach_the_module_exactly_under_bfloat16_compute(storage):
    denoiser, seen = build(storage=storage), {}
    module = denoiser.module
    for name in ("t_embedder", "fps_embedder", "pos_embed"):
        child = getattr(module, name)
        child.register_forward_hook(lambda _, args, out, name=name: seen.setdefault(name, (args, out)) and None)
    DtypeBoundary(denoiser)(inputs())
    (_, height, width), places = seen["pos_embed"]
    assert seen["t_embedder"][0][0].tolist() == [999.0, 999.0]
    assert seen["fps_embedder"][0][0].tolist() == torch.tensor([23.976] * 2).tolist()
    assert (height.item(), width.item()) == (480.0, 854.0)
    exact = build(F32, F32).module.pos_embed((2, 3), torch.tensor(480.0), torch.tensor(854.0))
    assert torch.equal(places, exact)


def test_a_boundary_left_out_names_module_dtypes_and_remedy():
    denoiser = build()
    batch = dataclasses.replace(inputs(), text_mask=torch.ones(2, 4, dtype=torch.bool))
    with guard(denoiser.module), pytest.raises(DtypeError) as error:
        denoiser.predict(batch)
    message = str(error.value)
    assert message.startswith("x_embedder.proj: PatchProjection got an input of float32")
    assert "weights of bfloat16" in message
    assert "remedy: call STDiT3 through precision.DtypeBoundary" in message
    with (
        guard(denoiser.module),
        refused("dtype-mismatch", "y_embedder.y_proj.fc1", says=r"^y_embedder\.y_proj\.fc1: Linear"),
    ):
        denoiser.predict(dataclasses.replace(batch, latent=batch.latent.to(BF16)))


def test_the_guard_leaves_no_hooks_behind():
    denoiser = build()
    with guard(denoiser.module):
        assert any(m._forward_pre_hooks for m in denoiser.module.modules())
    assert not any(m._forward_pre_hooks for m in denoiser.module.modules())


def test_the_guard_knows_every_kind_of_leaf_and_that_autocast_reconciles():
    leaves = [torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.RMSNorm(4), torch.nn.Conv1d(4, 4, 1)]
    x = torch.zeros(1, 4, 4, dtype=BF16)
    for leaf in leaves:
        with guard(leaf), pytest.raises(DtypeError, match=f"^{type(leaf).__name__}: "):
            leaf(x)
        with guard(leaf), torch.autocast("cpu", dtype=BF16):
            torch.nn.Sequential(leaf)(x.float() if isinstance(leaf, torch.nn.RMSNorm) else x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compute": torch.float16}, r"precision.compute = 'float16'.*loss scaler"),
        ({"output": torch.int32}, r"precision.output = 'int32'"),
        ({"master": BF16}, r"precision.master = 'bfloat16': master weights narrower than float32"),
        ({"storage": F32, "compute": F32, "reduction": BF16}, r"precision.reduction .* narrower than compute"),
        ({"compute": F32}, r"precision.storage = 'bfloat16': narrower than compute"),
    ],
)
def test_contracts_that_cannot_train_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        boundary.check_contract(contract(**changes))


@pytest.mark.parametrize("changes", [{}, {"storage": F32}, {"storage": F32, "compute": F32}])
def test_contracts_that_can_train_are_accepted(changes):
    boundary.check_contract(contract(**changes))


@pytest.mark.parametrize(("storage", "sharded"), [(BF16, False), (F32, False), (F32, True)])
def test_the_audit_passes_many_shapes_and_does_not_touch_the_model(storage, sharded):
    denoiser = build(storage=storage)
    before = {name: (p, p.clone()) for name, p in denoiser.module.named_parameters()}
    examples = [inputs(H=h, W=w, T=t) for h in (4, 5) for w in (6, 7) for t in (1, 3)]
    assert audit(denoiser, examples, sharded=sharded) == 8
    after = dict(denoiser.module.named_parameters())
    assert all(after[name] is p and torch.equal(p, copy) for name, (p, copy) in before.items())
    assert denoiser.contract.storage == storage


@pytest.mark.parametrize("index", [0, 2])
def test_the_audit_names_a_module_that_was_left_in_another_dtype(index):
    denoiser = build(depth=3)
    denoiser.module.spatial_blocks[index].mlp.fc2.float()
    where = rf"^spatial_blocks\.{index}\.mlp\.fc2: Linear got an input of bfloat16"
    with pytest.raises(DtypeError, match=where):
        audit(denoiser, [inputs()])


def test_the_audit_of_a_deep_model_runs_no_more_than_that_of_a_shallow_one():
    calls = []
    for depth in (1, 8):
        denoiser, ran = build(depth=depth), []
        for block in denoiser.sharding().blocks:
            # Hooks are copied with the module, so these see the audit's own copy run.
            block.mlp.fc1.register_forward_hook(lambda *_, ran=ran: ran.append(1))
        audit(denoiser, [inputs(), inputs(H=6)])
        calls.append(len(ran))
    assert calls == [4, 4]


@pytest.fixture
def one_rank(tmp_path):
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_what_is_sharded_is_seen_without_a_walk_through_all_modules(monkeypatch):
    """A network, and what holds networks; each forward pass asks, and networks have thousands of modules."""
    network = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    fully_shard(network, mesh=distributed.init_device_mesh("cpu", (1,)))
    plain, whole = nn.Sequential(nn.Sequential(nn.Linear(2, 2))), nn.ModuleDict({"transformer": network})
    monkeypatch.setattr(nn.Module, "named_modules", None)
    assert [boundary.is_sharded(each) for each in (network, whole, plain)] == [True, True, False]
