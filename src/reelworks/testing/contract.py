"""Contract of every denoiser, as checks that run on a tiny random network of each family.

Each check raises AssertionError with a message that names the violation. Legend: B clips, T latent frames, H height, W width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.core.shape import Shape
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.catalog.sources import SOURCES, sound_of
from reelworks.models import components, factory, recompute, registry
from reelworks.models.adapters import frozen, inject
from reelworks.models.adapters.adapter_types.registry import TYPES
from reelworks.models.adapters.config import BaseStorage, LoraConfig, Targets
from reelworks.models.api import Denoiser, DenoiserInputs, SoundInputs, given
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.models.objectives.objectives import Objective
from reelworks.models.precision import audit
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.recompute import Recompute


@dataclass
class Kept:
    """Bytes of memory saved for the backward pass, each storage counted once."""

    bytes: int = 0


@contextmanager
def counted() -> Iterator[Kept]:
    """Count memory saved for the backward pass, without parameters, which need no extra memory."""
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
SOUND_FEATURES = 4  # of tiny networks
IMAGE_DIM = 16  # width of the image tokens of tiny networks
_IMAGE_TOKENS = 5
# One tiny network for each family and each kind of its companions, and a pair of experts that share timesteps.
FAMILIES = tuple(name for name in registry.PRESETS if name.endswith("-tiny"))


def _classes() -> tuple[str, ...]:
    first: dict[tuple[object, bool], str] = {}
    for name in FAMILIES:
        has_two = switch_timestep(ModelConfig(name=name)) is not None
        first.setdefault((type(registry.PRESETS[name].config), has_two), name)
    return tuple(first.values())


# One for each class of network, for what does not depend on companions.
CLASSES = _classes()
_CLIPS = (Shape(1, 8, 8), Shape(1, 4, 12), Shape(5, 4, 4))


def shapes(name: str) -> list[Shape]:
    """Return a few small shapes that a family accepts."""
    geometry = components.geometry(ModelConfig(name=name), AUTOENCODER)
    return [shape for shape in _CLIPS if geometry.accepts_frames(shape.num_frames)]


def build(name: str, *, gradient_checkpointing: Recompute = False, **dtypes: Any) -> Denoiser:
    """Build a family's tiny network; parameters of zeros get random values, so that every path has an effect."""
    model = ModelConfig(name=name, gradient_checkpointing=gradient_checkpointing)
    if switch_timestep(model) is not None:
        model = model.model_copy(update={"experts": "both"})
    denoiser = factory.build_denoiser(model, autoencoder=AUTOENCODER, text=TEXT, device="cpu", seed=0, **dtypes)
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
    """Return random inputs of a shape, with texts of different lengths and all companions that a family takes."""
    g = torch.Generator().manual_seed(seed)
    T, H, W = shape.num_frames, shape.height, shape.width
    length = torch.arange(text.max_length, text.max_length - batch, -1)
    latent = torch.randn(batch, components.latent_channels(autoencoder), T, H, W, generator=g)
    frame_mask, beside = torch.ones(batch, T, dtype=torch.bool), {}
    if components.conditioning(ModelConfig(name=name)).frames_beside_noise:
        frame_mask[:, 0] = T == 1  # else a condition
        beside = {"condition": torch.randn(latent.shape, generator=g)}
    return DenoiserInputs(
        latent=latent,
        time=torch.linspace(900.0, 300.0, batch),
        text=torch.randn(batch, text.max_length, text.dim, generator=g),
        text_mask=torch.arange(text.max_length) < length[:, None],
        pooled=torch.randn(batch, text.pooled_dim, generator=g),
        guidance=torch.ones(batch),
        frame_mask=frame_mask,
        fps=torch.full((batch,), 24.0),
        height=torch.full((batch,), float(H)),
        width=torch.full((batch,), float(W)),
        drop_text=torch.zeros(batch, dtype=torch.bool),
        **given(_companions(latent, name, g) | beside, batch),
        sound=_sound(batch, T, name, g),
    )


def _sound(batch: int, frames: int, name: str, g: torch.Generator) -> SoundInputs | None:
    if not components.conditioning(ModelConfig(name=name)).sound:
        return None
    latent = torch.randn(batch, SOUND_FEATURES, frames + 1, 1, 1, generator=g)
    return SoundInputs(latent, torch.linspace(800.0, 200.0, batch), torch.ones(batch, frames + 1, dtype=torch.bool))


def _output(denoiser: Denoiser, inputs: DenoiserInputs) -> Tensor:
    """Return the prediction; with sound, those of picture and sound as one row for each clip."""
    boundary = DtypeBoundary(denoiser)
    if inputs.sound is None:
        return boundary(inputs)
    return torch.cat([out.flatten(1) for out in boundary.both(inputs)], dim=1)


def _companions(latent: Tensor, name: str, g: torch.Generator) -> dict[str, Tensor]:
    wants = components.conditioning(ModelConfig(name=name))
    taken, shown = wants.companions, wants.shown
    # Sources that are frames of the control are frames of any latents here.
    sources = SOURCES[: min(taken.most_sources, 4)] if "source" in taken.takes and not taken.sources_as_frames else ()
    kinds = [*(["control"] if "control" in taken.takes else []), *sources]
    kinds += ["first_frame"] if shown.first else []
    inputs = {key: torch.randn(latent.shape, generator=g) for key in kinds}
    inputs |= {name: inputs[name].mT for name in sources[1::2]}  # those of other sizes than the picture
    if taken.sounds:  # with the second source, and in place of the third
        size = (len(latent), SOUND_FEATURES, latent.shape[2] + 2, 1, 1)
        inputs |= {sound_of(name): torch.randn(size, generator=g) for name in sources[1:3]}
        del inputs[sources[2]]
    if taken.control_parts:
        channels = 2 * latent.shape[1] + math.prod(components.autoencoder_geometry(AUTOENCODER).stride[1:])
        inputs["control"] = torch.randn(len(latent), channels, *latent.shape[2:], generator=g)
    if shown.encoder:
        # A network that is given two pictures has a position for each token.
        tokens = 2 * IMAGE_ENCODERS[shown.encoder].tokens if shown.last else _IMAGE_TOKENS
        inputs["image"] = torch.randn(len(latent), tokens, IMAGE_DIM, generator=g)
    return inputs


def check_family(name: str) -> None:
    """Run all checks of a family, which is named by its preset that ends in `-tiny`."""
    check_shapes_and_gradients(name)
    check_dtypes(name)
    check_state(name)
    check_lora(name)
    check_lora(name, "blocks")
    check_gradient_checkpointing(name)
    check_bases(name)
    check_overfits(name)


def check_shapes_and_gradients(name: str) -> None:
    """Check that every shape runs forward and backward, and that a gradient reaches every trained parameter."""
    denoiser = build(name)
    for shape in shapes(name):
        inputs = example(shape, name)
        out = DtypeBoundary(denoiser)(inputs)
        assert out.shape == inputs.latent.shape, f"{name}: {shape} became {tuple(out.shape)}"
        torch.autograd.backward(_output(denoiser, inputs).square().mean())
    trained = {key: p for key, p in denoiser.module.named_parameters() if p.requires_grad}
    unreached = [key for key, p in trained.items() if p.grad is None or not p.grad.any()]
    assert not unreached, f"{name}: no gradient reaches {unreached[:5]}; declare them without_gradient"
    broken = [key for key, p in trained.items() if p.grad is not None and not p.grad.isfinite().all()]
    assert not broken, f"{name}: gradients of {broken[:5]} are not finite"


def check_dtypes(name: str) -> None:
    """Check that bfloat16 gives nearly the prediction of float32, as float32, and does not round times."""
    exact, lowered = build(name), build(name, compute=torch.bfloat16)
    inputs = example(shapes(name)[-1], name)
    with torch.no_grad():
        expected, actual = DtypeBoundary(exact)(inputs), DtypeBoundary(lowered)(inputs)
        assert expected.dtype == actual.dtype == torch.float32
        assert _distance(expected, actual) < 0.05, f"{name}: bfloat16 is {_distance(expected, actual):.1%} off"
        stored = build(name, compute=torch.bfloat16, storage=torch.bfloat16)
        times = [torch.full_like(inputs.time, time) for time in (999.0, 999.9)]  # one number in bfloat16
        near = [DtypeBoundary(stored)(dataclasses.replace(inputs, time=time)) for time in times]
    assert not torch.equal(*near), f"{name}: times are rounded before the network uses them"
    with audit.watched(lowered) as run:
        run(inputs)
    if exact.runs_on_meta:
        for sharded in (False, True):
            audit.audit(lowered, [inputs], sharded=sharded, units=lowered.sharding().units)


def check_state(name: str) -> None:
    """Check that a network which loads another one's state dict predicts the same."""
    one, other = build(name), build(name)
    with torch.no_grad():
        for parameter in other.module.parameters():
            parameter.add_(1)
        inputs = example(shapes(name)[-1], name)
        assert not torch.equal(one.predict(inputs), other.predict(inputs)), name
        other.module.load_state_dict(one.module.state_dict())
        assert torch.equal(one.predict(inputs), other.predict(inputs)), name


def tiny_lora(type: str) -> LoraConfig:
    """Return settings of an adapter type for tiny networks."""
    return LoraConfig(type=type, **TYPES[type].tiny)  # type: ignore[arg-type]


def check_lora(name: str, targets: Targets = "default", type: str = "lora") -> None:
    """Check that a new adapter changes nothing, that only it is trained, and that gradients reach all of it."""
    denoiser, inputs = build(name, compute=torch.bfloat16), example(shapes(name)[-1], name)
    boundary, adapted = DtypeBoundary(denoiser), len(denoiser.lora_targets(targets))
    with torch.no_grad():
        before = boundary(inputs)
        inject.inject(denoiser, tiny_lora(type).model_copy(update={"targets": targets}), seed=0)
        after = boundary(inputs)
    assert _distance(before, after) <= TYPES[type].tolerance, f"{name}: a new {type} changes the prediction"
    trained = {key: p for key, p in denoiser.module.named_parameters() if p.requires_grad}
    assert trained.keys() == inject.weights(denoiser.module).keys()
    layers = {layer for layer, _ in inject.parts(trained).values()}
    assert len(layers) == adapted, f"{name}: {len(layers)} layers with a {type} instead of {adapted}"
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(0.1)
    for shape in shapes(name):
        torch.autograd.backward(_output(denoiser, example(shape, name)).square().mean())
    unreached = [key for key, p in trained.items() if p.grad is None or not p.grad.any()]
    assert not unreached, f"{name}: no gradient reaches {unreached[:5]}"
    if denoiser.runs_on_meta:
        audit.audit(denoiser, [inputs], sharded=True, units=denoiser.sharding().units)


def with_lora(
    name: str,
    base: BaseStorage,
    compute: torch.dtype,
    *,
    gradient_checkpointing: Recompute = False,
    dora: bool = False,
    type: str = "lora",
    int8_products: bool = False,
) -> Denoiser:
    """Build a family's tiny network with a frozen base in some format and a random adapter."""
    denoiser = build(name, gradient_checkpointing=gradient_checkpointing, compute=compute)
    blocks = denoiser.sharding().blocks
    cpu = torch.device("cpu")
    frozen.store(denoiser.module, blocks, base, compute=compute, device=cpu, int8_products=int8_products)
    denoiser.contract = dataclasses.replace(denoiser.contract, base=base)
    inject.inject(denoiser, tiny_lora(type).model_copy(update={"dora": dora}), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in denoiser.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return denoiser


def answer(denoiser: Denoiser, inputs: DenoiserInputs) -> dict[str, Tensor]:
    """Return the prediction under "", and the gradients of its mean square by parameter name."""
    out = _output(denoiser, inputs)
    torch.autograd.backward(out.square().mean())
    gradients = {key: p.grad for key, p in denoiser.module.named_parameters() if p.grad is not None}
    return {"": out.detach(), **gradients}


def check_gradient_checkpointing(name: str, type: str = "lora") -> None:
    """Check that gradient checkpointing gives bit-identical gradients of an adapter and saves less for backward.

    That of a network which leaves it to buckets is the same.
    """
    inputs, answers, saved = example(shapes(name)[-1], name), [], []
    ways: list[tuple[Recompute, Recomputation]] = [(False, False), (True, True), ("auto", 0.5)]
    for built, way in ways:
        denoiser = with_lora(name, "float32", torch.float32, gradient_checkpointing=built, type=type)
        with counted() as activations, recompute.by(way):
            answers.append(answer(denoiser, inputs))
        saved.append(activations.bytes)
        differing = _differing(answers[0], answers[-1])
        assert not differing, f"{name}: gradient checkpointing ({built}, {way}) changes {differing[:5]}"
    assert saved[1] < saved[0], f"{name}: gradient checkpointing recomputes no block"
    assert saved[2] < saved[0], f"{name}: buckets do not decide what is recomputed"
    lowered = []
    for way in (False, "selective"):
        denoiser = with_lora(name, "bfloat16", torch.bfloat16, gradient_checkpointing="auto", type=type)
        with recompute.by(way):
            lowered.append(answer(denoiser, inputs))
    # A network that runs clip by clip sums their gradients in float32 then, which are summed in bfloat16 otherwise.
    off = max(_distance(lowered[0][key], lowered[1][key]) for key in lowered[0])
    assert off < 0.02, f"{name}: selective gradient checkpointing in bfloat16 is {off:.1%} off"


def check_bases(name: str, type: str = "lora") -> None:
    """Check that a bfloat16 base changes nothing when computing in bfloat16, and a 4-bit base only a little."""
    inputs = example(shapes(name)[-1], name, batch=1)
    expected = answer(with_lora(name, "float32", torch.bfloat16, type=type), inputs)
    differing = _differing(expected, answer(with_lora(name, "bfloat16", torch.bfloat16, type=type), inputs))
    assert not differing, f"{name}: a base in bfloat16 changes {differing[:5]}"
    denoiser = with_lora(name, "nf4", torch.bfloat16, type=type)
    actual = answer(denoiser, inputs)
    assert actual.keys() == expected.keys(), f"{name}: nf4 changes gradients of {actual.keys() ^ expected.keys()}"
    off = _distance(expected[""], actual[""])
    assert 0 < off < 0.25, f"{name}: a base in nf4 is {off:.1%} off"
    if denoiser.runs_on_meta:
        audit.audit(denoiser, [inputs], sharded=True, units=denoiser.sharding().units)


def check_overfits(name: str, *, most_steps: int = 200, learning_rate: float = 5e-3) -> int:
    """Check that the loss of one clip falls below a tenth, and return the number of steps that this took."""
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
    raise AssertionError(f"{name}: the loss only fell from {losses[0]:.3g} to {losses[-1]:.3g}")


def _differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key, value in one.items() if not torch.equal(value, other[key])]


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / one.norm())


def loss(denoiser: Denoiser, objective: Objective, clean: DenoiserInputs, noise: Tensor) -> Tensor:
    """Return the training loss of a micro-batch with equal weights; `clean.latent` holds the clean latents."""
    x_t = objective.noised(clean.latent, noise, clean.time, clean.frame_mask)
    if clean.sound is None:
        output = DtypeBoundary(denoiser)(dataclasses.replace(clean, latent=x_t))
        return objective.losses(output, x_t, clean.latent, noise, clean.time, clean.frame_mask).mean()
    shown, of_sound = clean.sound, sound_noise(clean.sound)
    heard = objective.noised(shown.latent, of_sound, shown.time, shown.mask)
    noised = dataclasses.replace(clean, latent=x_t, sound=dataclasses.replace(shown, latent=heard))
    picture, sound = DtypeBoundary(denoiser).both(noised)
    losses = objective.losses(picture, x_t, clean.latent, noise, clean.time, clean.frame_mask)
    return (losses + objective.losses(sound, heard, shown.latent, of_sound, shown.time, shown.mask)).mean()


def sound_noise(clean: SoundInputs) -> Tensor:
    """Return noise for the sound of a micro-batch, the same in all calls."""
    return torch.randn(clean.latent.shape, generator=torch.Generator().manual_seed(4))
