"""The promises of every denoiser, as checks over tiny random ones; new models are tried with the same.

Each check raises AssertionError with what was promised. Legend: B clips, T latent frames, H height, W width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.core.shape import Shape
from reelworks.diffusion.objectives import Objective
from reelworks.models import components, factory, registry
from reelworks.models.api import Denoiser, DenoiserInputs, nothing_given
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.models.lora import frozen, inject
from reelworks.models.lora.config import BaseStorage, LoraConfig, Targets
from reelworks.precision import audit
from reelworks.precision.boundary import DtypeBoundary


@dataclass
class Kept:
    """Memory that was kept so far, each piece once."""

    bytes: int = 0


@contextmanager
def counted() -> Iterator[Kept]:
    """Count while open; parameters, which are there anyway or are fetched again, are left out."""
    kept, seen = Kept(), set[int]()

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_parameter = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if not is_parameter and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            kept.bytes += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        yield kept


AUTOENCODER = AutoencoderConfig(stride=1)
TEXT = TextEncoderConfig(dim=32, max_length=6, pooled_dim=8)
IMAGE_DIM = 16  # of the tokens that tiny networks take of a picture
_IMAGE_TOKENS = 5
# One tiny network for each family, one for each way in which a family is shown companions, and two that share timesteps.
FAMILIES = tuple(name for name in registry.PRESETS if name.endswith("-tiny"))
_CLIPS = (Shape(1, 8, 8), Shape(1, 4, 12), Shape(5, 4, 4))


def shapes(name: str) -> list[Shape]:
    """A small bucket table that a family takes."""
    geometry = components.geometry(ModelConfig(name=name), AUTOENCODER)
    return [shape for shape in _CLIPS if geometry.accepts_frames(shape.num_frames)]


def build(name: str, *, gradient_checkpointing: bool = False, **dtypes: Any) -> Denoiser:
    """Build a family's tiny network; where fresh weights are zero they get a value, so that every path counts."""
    model = ModelConfig(name=name, gradient_checkpointing=gradient_checkpointing)
    if switch_timestep(model) is not None:
        model = model.model_copy(update={"experts": "both"})
    denoiser = factory.build_denoiser(
        model, autoencoder=AUTOENCODER, text=TEXT, device="cpu", seed=0, **dtypes
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in denoiser.module.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1, generator=generator)
    return denoiser


def example(
    shape: Shape,
    name: str,
    *,
    batch: int = 2,
    seed: int = 0,
    autoencoder: AutoencoderConfig = AUTOENCODER,
    text: TextEncoderConfig = TEXT,
) -> DenoiserInputs:
    """Random inputs of a shape, with texts of different lengths, and all companions that a family takes."""
    g = torch.Generator().manual_seed(seed)
    T, H, W = shape.num_frames, shape.height, shape.width
    length = torch.arange(text.max_length, text.max_length - batch, -1)
    latent = torch.randn(batch, components.latent_channels(autoencoder), T, H, W, generator=g)
    return DenoiserInputs(
        latent=latent,
        time=torch.linspace(900.0, 300.0, batch),
        text=torch.randn(batch, text.max_length, text.dim, generator=g),
        text_mask=torch.arange(text.max_length) < length[:, None],
        pooled=torch.randn(batch, text.pooled_dim, generator=g),
        guidance=torch.ones(batch),
        frame_mask=torch.ones(batch, T, dtype=torch.bool),
        fps=torch.full((batch,), 24.0),
        height=torch.full((batch,), float(H)),
        width=torch.full((batch,), float(W)),
        drop_text=torch.zeros(batch, dtype=torch.bool),
        **_companions(latent, name, g),
    )


def _companions(latent: Tensor, name: str, g: torch.Generator) -> dict[str, Tensor]:
    wants = components.conditioning(ModelConfig(name=name))
    given = [*wants.takes, *(["first_frame"] if wants.first_frame else [])]
    found = nothing_given(latent) | {key: torch.randn(latent.shape, generator=g) for key in given}
    if wants.image_encoder:
        found["image"] = torch.randn(len(latent), _IMAGE_TOKENS, IMAGE_DIM, generator=g)
    return found


def check_family(name: str) -> None:
    """Run all checks of a family on its tiny network.

    Args:
        name: Its preset that ends in `-tiny`.

    Raises:
        AssertionError: Says what does not hold.
    """
    check_shapes_and_gradients(name)
    check_dtypes(name)
    check_state(name)
    check_lora(name)
    check_lora(name, "blocks")
    check_gradient_checkpointing(name)
    check_bases(name)
    check_overfits(name)


def check_shapes_and_gradients(name: str) -> None:
    """Every shape goes forward and backward; every trained parameter is reached by a shape at least."""
    denoiser = build(name)
    for shape in shapes(name):
        inputs = example(shape, name)
        out = DtypeBoundary(denoiser)(inputs)
        assert out.shape == inputs.latent.shape, f"{name}: {shape} became {tuple(out.shape)}"
        torch.autograd.backward(out.square().mean())
    trained = {key: p for key, p in denoiser.module.named_parameters() if p.requires_grad}
    unreached = [key for key, p in trained.items() if p.grad is None or not p.grad.any()]
    assert not unreached, f"{name}: no gradient reaches {unreached[:5]}; declare them without_gradient"
    broken = [key for key, p in trained.items() if p.grad is not None and not p.grad.isfinite().all()]
    assert not broken, f"{name}: gradients of {broken[:5]} are not finite"


def check_dtypes(name: str) -> None:
    """In bfloat16 as in float32 the answer is float32 and about the same, and times are not rounded."""
    exact, lowered = build(name), build(name, compute=torch.bfloat16)
    inputs = example(shapes(name)[-1], name)
    with torch.no_grad():
        wanted, found = DtypeBoundary(exact)(inputs), DtypeBoundary(lowered)(inputs)
        assert wanted.dtype == found.dtype == torch.float32
        assert _distance(wanted, found) < 0.05, f"{name}: bfloat16 is {_distance(wanted, found):.1%} off"
        stored = build(name, compute=torch.bfloat16, storage=torch.bfloat16)
        near = [_at(stored, inputs, time) for time in (999.0, 999.9)]  # one number in bfloat16
    assert not torch.equal(*near), f"{name}: times are rounded on their way in"
    if exact.runs_on_meta:
        for sharded in (False, True):
            audit.audit(lowered, [inputs], sharded=sharded, units=lowered.sharding().blocks)


def check_state(name: str) -> None:
    """A state dict holds all that decides the answer: another network that loads it answers the same."""
    one, other = build(name), build(name)
    with torch.no_grad():
        for parameter in other.module.parameters():
            parameter.add_(1)
        inputs = example(shapes(name)[-1], name)
        assert not torch.equal(one.predict(inputs), other.predict(inputs)), name
        other.module.load_state_dict(one.module.state_dict())
        assert torch.equal(one.predict(inputs), other.predict(inputs)), name


def check_lora(name: str, targets: Targets = "default") -> None:
    """A LoRA begins as no change, is all that is trained, and every part of it is reached; dtypes hold."""
    denoiser, inputs = build(name, compute=torch.bfloat16), example(shapes(name)[-1], name)
    boundary, adapted = DtypeBoundary(denoiser), len(denoiser.lora_targets(targets))
    with torch.no_grad():
        before = boundary(inputs)
        inject.inject(denoiser, LoraConfig(rank=2, targets=targets), seed=0)
        assert torch.equal(before, boundary(inputs)), f"{name}: a fresh LoRA changes the answer"
    trained = {key: p for key, p in denoiser.module.named_parameters() if p.requires_grad}
    assert trained.keys() == inject.weights(denoiser.module).keys()
    assert len(trained) == 2 * adapted, f"{name}: {len(trained)} low-rank matrices for {adapted} layers"
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(0.1)
    for shape in shapes(name):
        torch.autograd.backward(boundary(example(shape, name)).square().mean())
    unreached = [key for key, p in trained.items() if p.grad is None or not p.grad.any()]
    assert not unreached, f"{name}: no gradient reaches {unreached[:5]}"
    if denoiser.runs_on_meta:
        audit.audit(denoiser, [inputs], sharded=True, units=denoiser.sharding().blocks)


def with_lora(
    name: str,
    base: BaseStorage,
    compute: torch.dtype,
    *,
    gradient_checkpointing: bool = False,
    dora: bool = False,
) -> Denoiser:
    """Build a family's tiny network with a stored base and a LoRA of random numbers."""
    denoiser = build(name, gradient_checkpointing=gradient_checkpointing, compute=compute)
    blocks = denoiser.sharding().blocks
    frozen.store(denoiser.module, blocks, base, compute=compute, device=torch.device("cpu"))
    denoiser.contract = dataclasses.replace(denoiser.contract, base=base)
    inject.inject(denoiser, LoraConfig(rank=2, dora=dora), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in denoiser.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return denoiser


def answer(denoiser: Denoiser, inputs: DenoiserInputs) -> dict[str, Tensor]:
    """The prediction, and by name the gradients of its mean square."""
    out = DtypeBoundary(denoiser)(inputs)
    torch.autograd.backward(out.square().mean())
    gradients = {key: p.grad for key, p in denoiser.module.named_parameters() if p.grad is not None}
    return {"": out.detach(), **gradients}


def check_gradient_checkpointing(name: str) -> None:
    """Blocks that are computed twice give the same LoRA to the last bit, and keep less for the backward pass."""
    inputs, found, stays = example(shapes(name)[-1], name, batch=1), [], []
    for twice in (False, True):
        denoiser = with_lora(name, "float32", torch.float32, gradient_checkpointing=twice)
        with counted() as activations:
            DtypeBoundary(denoiser)(inputs)
        stays.append(activations.bytes)
        found.append(answer(denoiser, inputs))
    assert stays[1] < stays[0], f"{name}: no block is computed twice"
    assert found[0].keys() == found[1].keys()
    differing = [key for key, value in found[0].items() if not torch.equal(value, found[1][key])]
    assert not differing, f"{name}: gradient checkpointing changes {differing[:5]}"


def check_bases(name: str) -> None:
    """A base in bfloat16 changes nothing under products of bfloat16; one of 4 bits answers about the same."""
    inputs = example(shapes(name)[-1], name, batch=1)
    wanted = answer(with_lora(name, "float32", torch.bfloat16), inputs)
    lowered = answer(with_lora(name, "bfloat16", torch.bfloat16), inputs)
    assert lowered.keys() == wanted.keys()
    differing = [key for key, value in wanted.items() if not torch.equal(value, lowered[key])]
    assert not differing, f"{name}: a base in bfloat16 changes {differing[:5]}"
    denoiser = with_lora(name, "nf4", torch.bfloat16)
    found = answer(denoiser, inputs)
    assert found.keys() == wanted.keys(), f"{name}: of nf4, {found.keys() ^ wanted.keys()}"
    off = _distance(wanted[""], found[""])
    assert 0 < off < 0.25, f"{name}: a base in nf4 is {off:.1%} off"
    if denoiser.runs_on_meta:
        audit.audit(denoiser, [inputs], sharded=True, units=denoiser.sharding().blocks)


def check_overfits(name: str, *, most_steps: int = 200, learning_rate: float = 5e-3) -> int:
    """One clip at a fixed time and noise is learnt: the loss falls below a tenth; returns after how many steps."""
    denoiser, inputs = build(name), example(shapes(name)[-1], name, batch=1)
    target = torch.randn(inputs.latent.shape, generator=torch.Generator().manual_seed(2))
    trained = [p for p in denoiser.module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate)
    losses = []
    for step in range(most_steps):
        optimizer.zero_grad(set_to_none=True)
        loss = (denoiser.predict(inputs) - target).square().mean()
        losses.append(float(loss.detach()))
        if losses[-1] < 0.1 * losses[0]:
            return step
        torch.autograd.backward(loss)
        optimizer.step()
    raise AssertionError(f"{name}: the loss fell from {losses[0]:.3g} to {losses[-1]:.3g} alone")


def _at(denoiser: Denoiser, inputs: DenoiserInputs, time: float) -> Tensor:
    return DtypeBoundary(denoiser)(dataclasses.replace(inputs, time=torch.full_like(inputs.time, time)))


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / one.norm())


def loss(denoiser: Denoiser, objective: Objective, clean: DenoiserInputs, noise: Tensor) -> Tensor:
    """The trainer's loss of a micro-batch, its clips alike; `clean.latent` is what is learnt."""
    x_t = objective.noised(clean.latent, noise, clean.time, clean.frame_mask)
    output = DtypeBoundary(denoiser)(dataclasses.replace(clean, latent=x_t))
    return objective.losses(output, x_t, clean.latent, noise, clean.time, clean.frame_mask).mean()
