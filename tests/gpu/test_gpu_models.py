"""Networks, LoRAs, optimizers and samplers answer on a GPU as they do on the CPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import devices
import diffusers
import pytest
import tiny_families
import tiny_recipe
import torch
from torch import Tensor, nn

import reelworks as rw
from reelworks.data.distributed import mesh
from reelworks.data.distributed.layout import Layout
from reelworks.inference.generate import pipeline
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components, factory, registry
from reelworks.models.adapters import frozen
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.attention import attention
from reelworks.models.attention.attention_audit import ReplacedKernels
from reelworks.models.config import Attention, ModelConfig
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.assembly import build
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.loop.config import TrainConfig
from reelworks.training.recipe import recipe_file
from reelworks.training.step.optimizer_names import OPTIMIZERS
from reelworks.training.step.optimizers import ShardedOptimizer, matrices
from reelworks.training.step.state import TrainState

# bfloat16 has 8 bits: the contract allows 5 % of the output, and gradients add the errors of all blocks.
OUTPUT, GRADIENT = 0.05, 0.15
_BASES = ("bfloat16", "float8", "int8", "int8-products", "nf4")
_NETWORKS = ("stdit3-tiny", "wan-tiny", "flux-tiny")
# Muon brings all singular values near 1, by products in bfloat16.
_ROUNDED = {"adamw8bit": 0.05, "muon": 0.3}
_EPS = ("adamw", "adamw8bit", "prodigy", "schedulefree")


def to(inputs: DenoiserInputs, device: str) -> DenoiserInputs:
    return inputs.each(lambda tensor: tensor.to(device))


def answer_on(device: str, denoiser: Denoiser, inputs: DenoiserInputs) -> dict[str, Tensor]:
    denoiser.module.to(device)
    return {key: value.cpu() for key, value in contract.answer(denoiser, to(inputs, device)).items()}


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).norm() / one.float().norm())


def check_alike(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> None:
    """The output is near, and so are all gradients together, which are float32 and finite."""
    assert actual.keys() == expected.keys()
    assert distance(expected[""], actual[""]) < OUTPUT
    names = [key for key in expected if key]
    assert {actual[key].dtype for key in names} == {torch.float32}
    whole = [torch.cat([values[key].flatten() for key in names]) for values in (expected, actual)]
    assert whole[1].isfinite().all()
    assert distance(*whole) < GRADIENT


@devices.both([f"{name} {dtype}" for name in ("sd3", "wan-2.1") for dtype in ("float32", "bfloat16")])
def test_a_compiled_encoder_gives_the_latents_of_a_plain_one(device: str, name: str, tmp_path: Path) -> None:
    """On a GPU by its usual compiler and with channels last; in float32 its convolutions round to 10 bits."""
    autoencoder, dtype = name.split()
    torch.manual_seed(0)
    kind: Any = getattr(diffusers, registry.AUTOENCODERS[autoencoder].network)
    kind(**tiny_families.AUTOENCODERS[autoencoder]).save_pretrained(tmp_path / "vae")
    frames = torch.randint(0, 256, (2, 1 if autoencoder == "sd3" else 9, 32, 48, 3), dtype=torch.uint8)

    def latents(dtype: str, device: str, **train: Any) -> Tensor:
        own = {"name": autoencoder, "weights": str(tmp_path), "dtype": dtype}
        made = tiny_recipe.of_family(
            "wan-tiny" if autoencoder == "wan-2.1" else "sd3-tiny", tmp_path, {"path": "unused"}
        )
        recipe = recipe_file.parse(made | {"autoencoder": own, "train": {"max_steps": 1, **train}})
        return build.lazy_encoder(recipe, torch.device(device)).latents(frames).cpu()

    exact = latents("float32", "cpu")
    backend = "aot_eager" if device == "cpu" else "inductor"
    assert distance(exact, latents(dtype, device, compile=True, compile_backend=backend)) < (
        5e-3 if dtype == "float32" else OUTPUT
    )


@devices.both(contract.FAMILIES)
def test_every_family_in_bfloat16_is_near_float32(device: str, name: str) -> None:
    """Forward and backward, for each of its shapes, with kernels of attention that are right."""
    exact, lowered = contract.build(name), contract.build(name, compute=torch.bfloat16)
    recorded = contract.build(name, compute=torch.bfloat16)  # which stays on the CPU
    for shape in contract.shapes(name):
        inputs = contract.example(shape, name)
        report = rw.check_attention(partial(contract.answer, recorded, inputs), device=device)
        assert report.calls
        assert all(fault.instead for fault in report.faults)
        for denoiser in (exact, lowered):
            denoiser.module.zero_grad()
        with report.replaced():
            check_alike(contract.answer(exact, inputs), answer_on(device, lowered, inputs))


@devices.both([f"{name} {base}" for name in _NETWORKS for base in _BASES], quick=["wan-tiny int8"])
def test_a_lora_on_a_frozen_base(device: str, name: str) -> None:
    """A base is quantised on the device to the codes of the CPU, and gradients reach the LoRA alike."""
    network, stored = name.split()
    base, _, products = stored.partition("-")
    inputs = contract.example(contract.shapes(network)[-1], network)
    lora: dict[str, Any] = {"base": base, "int8_products": bool(products)}
    config: Any = {"lora": LoraConfig(rank=2, **lora), "compute": torch.bfloat16}
    here, there = (
        factory.build_denoiser(
            ModelConfig(name=network, gradient_checkpointing=True),
            autoencoder=contract.AUTOENCODER,
            text=contract.TEXT,
            device=place,
            seed=0,
            **config,
        )
        for place in ("cpu", device)
    )
    layers = [frozen.quantized_layers(one.module) for one in (here, there)]
    assert len(layers[0]) == len(layers[1])
    assert bool(layers[0]) == (base in frozen.FORMATS)
    for one, other in zip(*layers, strict=True):
        assert other.codes.device.type == device
        same = one.codes.view(torch.uint8) == other.codes.cpu().view(torch.uint8)
        assert same.float().mean() > 0.999
    for denoiser in (here, there):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in denoiser.module.parameters():
                p.add_(torch.randn(p.shape, generator=generator).to(p), alpha=0.1 if p.requires_grad else 0.0)
                if not p.any():  # layers that begin as zeros would pass no gradient on
                    p.add_(torch.randn(p.shape, generator=generator).to(p), alpha=0.1)
    with ReplacedKernels().replaced():
        check_alike(contract.answer(here, inputs), answer_on(device, there, inputs))


@devices.both(["stdit3-tiny", "wan-tiny"])
def test_weights_in_cpu_memory_train_as_on_the_device(device: str, name: str) -> None:
    """With FSDP's offloading, two steps change the weights as they do without."""
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("the GPU is used where there is one")
    inputs = to(contract.example(contract.shapes(name)[-1], name), device)
    plain, offloaded = contract.build(name), contract.build(name)
    began = [p.detach().clone() for p in plain.module.parameters()]
    plain.module.to(device)
    _train(plain, inputs)
    with mesh.join(offload=True) as world:
        assert (world.device.type, world.home.type) == (device, "cpu")
        units = offloaded.sharding().units
        mesh.shard(offloaded.module, units, offloaded.contract, world, Layout.from_strategy("fsdp", 1))
        _train(offloaded, inputs)
        found = [mesh.local(p.detach()).cpu() for p in offloaded.module.parameters()]
    assert {p.device.type for p in offloaded.module.parameters()} == {"cpu"}
    wanted = [p.detach().cpu() for p in plain.module.parameters()]
    moved = [torch.cat([(a - b).flatten() for a, b in zip(after, began, strict=True)]) for after in (wanted, found)]
    assert moved[0].norm() > 0
    assert distance(*moved) < 0.02


def _train(denoiser: Denoiser, inputs: DenoiserInputs) -> None:
    # Epsilon as usual: with ours, the sign of a gradient that is all rounding would decide its update.
    config = TrainConfig(max_steps=9, learning_rate=1e-3, eps=1e-6)
    state = TrainState.start(denoiser, config)
    for _ in range(2):
        torch.autograd.backward(DtypeBoundary(denoiser)(inputs).square().mean())
        state.optimizer.step()
        state.optimizer.zero_grad()


@devices.both(sorted(OPTIMIZERS), quick=["adamw"])
def test_an_optimizer_updates_as_on_the_cpu(device: str, name: str) -> None:
    listed = OPTIMIZERS[name]
    if listed.package is not None:
        pytest.importorskip(listed.module or listed.package)
    moved = []
    for place in ("cpu", device):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 80), nn.GELU(), nn.Linear(80, 64))
        start = [p.detach().clone() for p in module.parameters()]
        module.to(place)
        keys: dict[str, Any] = {"eps": 1e-8} if name in _EPS else {}  # the others have no such key
        config = TrainConfig.model_validate({"max_steps": 9, "optimizer": name, **keys})
        made = ShardedOptimizer(config, dict(module.named_parameters()), matrices(module, [module]))
        for step in range(3):
            torch.manual_seed(step)
            x, y = torch.randn(16, 64), torch.randn(16, 64)
            torch.autograd.backward((module(x.to(place)) - y.to(place)).square().mean())
            made.step()
            made.zero_grad()
        moved.append(
            torch.cat([(p.detach().cpu() - s).flatten() for p, s in zip(module.parameters(), start, strict=True)])
        )
    assert moved[0].norm() > 0
    assert distance(*moved) < _ROUNDED.get(name, 1e-3)


@devices.both(["stdit3-tiny", "flux-tiny"])
def test_pictures_are_generated(device: str, name: str) -> None:
    """The sampler gives a picture, the same one from the same seed."""
    encoder = FrozenEncoders(
        factory.build_autoencoder(contract.AUTOENCODER).to(torch.device(device)),
        factory.build_text_encoder(contract.TEXT).to(torch.device(device)),
        torch.device(device),
        components.conditioning(ModelConfig(name=name)),
    )
    denoiser = contract.build(name, compute=torch.bfloat16)
    denoiser.module.to(device)
    options = GenerateOptions(contract.shapes(name)[0], 24.0, 2, 3.0, 5, Conditions(None), {})
    made = [
        pipeline.generate(DtypeBoundary(denoiser), encoder, ObjectiveConfig(), ["waves"], options)[0][0]
        for _ in range(2)
    ]
    assert made[0].std() > 0
    assert (made[0] == made[1]).all()


@devices.on_a_gpu
@pytest.mark.parametrize("name", ["stdit3-tiny", "flux-tiny"])  # heads of 32 and 16; wan-tiny's 12 fit no kernel
@pytest.mark.parametrize("kernel", ["cudnn", "flash", "flash-3", "flash-4"])
def test_a_kernel_of_attention_is_near_the_native_one(device: str, name: str, kernel: Attention) -> None:
    if kernel == "flash" and name == "flux-tiny" and not attention._is_installed("flash_attn.flash_attn_interface"):
        pytest.skip("diffusers takes it from flash-attn, which is not installed")
    version = attention._VERSIONS.get(kernel)
    if version is not None and (reason := attention._reason_against_version(version)):
        pytest.skip(reason)
    inputs = contract.example(contract.shapes(name)[-1], name)
    native, other = contract.build(name, compute=torch.bfloat16), contract.build(name, compute=torch.bfloat16)
    attention.use(other, kernel, torch.device(device))
    expected = answer_on(device, native, inputs)
    with attention.prefer(kernel):
        check_alike(expected, answer_on(device, other, inputs))
