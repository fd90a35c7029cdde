"""From configs to running models: the one place that knows every family."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import nn

from reelworks.core.errors import UserError
from reelworks.models import diffusers_denoiser, identify, networks, optional_imports, published
from reelworks.models import weights as fit
from reelworks.models.api import INPUT_ROLES, Autoencoder, Denoiser, TextEncoder
from reelworks.models.autoencoders.diffusers_kl import DiffusersAutoencoder
from reelworks.models.autoencoders.opensora import video
from reelworks.models.autoencoders.pixel import PixelAutoencoder
from reelworks.models.config import (
    ADAPTED,
    AUTOENCODERS,
    PRESETS,
    TEXT_ENCODERS,
    AutoencoderConfig,
    ModelConfig,
    TextConfig,
    latent_channels,
    require_known,
    resolve_denoiser,
)
from reelworks.models.diffusers_denoiser import DiffusersDenoiser, Predict
from reelworks.models.experts import config as experts
from reelworks.models.experts.denoiser import Experts, ExpertsDenoiser
from reelworks.models.family import FamilyConfig
from reelworks.models.flux import adapter as flux
from reelworks.models.flux.config import FluxConfig
from reelworks.models.flux2 import adapter as flux2
from reelworks.models.flux2.config import Flux2Config
from reelworks.models.hunyuan_video15 import adapter as hunyuan_video15
from reelworks.models.hunyuan_video15.config import HunyuanVideo15Config
from reelworks.models.lora import frozen, inject, reading
from reelworks.models.lora.base_model import Base, digest
from reelworks.models.lora.config import BaseStorage, LoraConfig
from reelworks.models.ltx import adapter as ltx
from reelworks.models.ltx.config import LTXConfig
from reelworks.models.ltx2 import adapter as ltx2
from reelworks.models.ltx2.config import LTX2Config
from reelworks.models.networks import Sizes
from reelworks.models.qwen_image import adapter as qwen_image
from reelworks.models.qwen_image.config import QwenImageConfig
from reelworks.models.sd3 import adapter as sd3
from reelworks.models.sd3.config import SD3Config
from reelworks.models.sdxl import adapter as sdxl
from reelworks.models.sdxl.config import SDXLConfig
from reelworks.models.stdit2 import adapter as stdit2
from reelworks.models.stdit2 import sharding as stdit2_sharding
from reelworks.models.stdit2 import weights as stdit2_weights
from reelworks.models.stdit2.config import STDiT2Config
from reelworks.models.stdit2.model import STDiT2
from reelworks.models.stdit3 import adapter as stdit3
from reelworks.models.stdit3 import sharding as stdit3_sharding
from reelworks.models.stdit3 import weights
from reelworks.models.stdit3.adapter import STDiTDenoiser
from reelworks.models.stdit3.config import STDiT3Config
from reelworks.models.stdit3.model import STDiT3
from reelworks.models.text.encoders import FamilyTextEncoder
from reelworks.models.text.hashed import HashedTextEncoder
from reelworks.models.text.t5 import T5TextEncoder
from reelworks.models.wan import adapter as wan
from reelworks.models.wan.config import WanConfig
from reelworks.models.z_image import adapter as z_image
from reelworks.models.z_image.config import ZImageConfig
from reelworks.precision.boundary import check_contract
from reelworks.precision.contract import Contract, name_of

PREDICTS: dict[type[FamilyConfig], Predict] = {
    FluxConfig: flux.predict,
    Flux2Config: flux2.predict,
    HunyuanVideo15Config: hunyuan_video15.predict,
    LTXConfig: ltx.predict,
    LTX2Config: ltx2.predict,
    QwenImageConfig: qwen_image.predict,
    SD3Config: sd3.predict,
    SDXLConfig: sdxl.predict,
    WanConfig: wan.predict,
    ZImageConfig: z_image.predict,
}


def denoiser_contract(
    storage: torch.dtype, compute: torch.dtype, reduction: torch.dtype, base: BaseStorage = "float32"
) -> Contract:
    """Dtypes of every denoiser: those that a recipe chooses, float32 for the rest."""
    return Contract(
        storage=storage,
        compute=compute,
        master=torch.float32,
        reduction=reduction,
        output=torch.float32,
        roles=INPUT_ROLES,
        base=None if base == "float32" else base,
    )


def build_denoiser(
    model: ModelConfig,
    *,
    autoencoder: AutoencoderConfig,
    text: TextConfig,
    device: torch.device | str,
    seed: int,
    compute: torch.dtype = torch.float32,
    storage: torch.dtype = torch.float32,
    reduction: torch.dtype = torch.float32,
    learns_variance: bool = False,
    lora: LoraConfig | None = None,
) -> Denoiser:
    """Build a denoiser with its weights.

    Args:
        model: Which one, and where its weights come from.
        autoencoder: Fixes the latent channels.
        text: Fixes the width and length of captions.
        device: Where it lives. On `meta` it has shapes alone: nothing is drawn or loaded.
        seed: Decides fresh weights, equal on every device; the global generators are left as they were.
        compute: Dtype of matrix products.
        storage: Dtype of the parameters.
        reduction: Dtype in which gradients are summed over ranks.
        learns_variance: The objective reads a second half of channels.
        lora: Low-rank updates, which alone are trained then; it says how all else is stored.

    Raises:
        UserError: If a name is unknown, sizes or dtypes do not fit, or weights cannot be loaded.
    """
    stored: BaseStorage = "float32" if lora is None else lora.exact_base(name_of(compute))
    contract = denoiser_contract(storage, compute, reduction, stored)
    check_contract(contract)
    pred_sigma = _published_sigma(model, autoencoder, learns_variance)
    config = resolve_denoiser(model, autoencoder=autoencoder, text=text, pred_sigma=pred_sigma)
    device = torch.device(device)
    module = _build(config, model, device, seed, mapped=lora is not None)
    denoiser = _adapt(module, contract, config, model, autoencoder)
    if lora is None:
        nn.Module.to(module, device, storage)
        return denoiser
    with_numbers = device.type != "meta"
    if with_numbers:
        denoiser.base = Base(model.name, model.weights, digest(module.state_dict()))
    frozen.store(module, _blocks(denoiser), stored, compute=compute, device=device)
    inject.inject(denoiser, lora, seed=seed)
    if lora.weights is not None and with_numbers:
        reading.load_into(denoiser.module, lora, ADAPTED.get(model.name))
    return denoiser


def _blocks(denoiser: Denoiser) -> list[nn.Module]:
    """The units of a denoiser without whole networks."""
    whole = list(denoiser.module.children()) if isinstance(denoiser, ExpertsDenoiser) else []
    return [unit for unit in denoiser.sharding().blocks if unit not in whole]


def _adapt(
    module: nn.Module,
    contract: Contract,
    config: Sizes,
    model: ModelConfig,
    autoencoder: AutoencoderConfig,
) -> Denoiser:
    if isinstance(module, STDiT2):
        units = stdit2_sharding.plan(module)
        return STDiTDenoiser(module, contract, module.config.in_channels, stdit2.predict, units)
    if isinstance(module, STDiT3):
        units = stdit3_sharding.plan(module)
        return STDiTDenoiser(module, contract, module.config.in_channels, stdit3.predict, units)
    assert not isinstance(config, STDiT2Config | STDiT3Config)
    channels, predict = latent_channels(autoencoder), PREDICTS[type(config)]
    if not isinstance(module, Experts):
        return DiffusersDenoiser(module, contract, config, channels, predict)
    high, low = (DiffusersDenoiser(m, contract, config, channels, predict) for m in module.children())
    boundary = experts.boundary(model)
    assert boundary is not None, "the recipe was checked"
    return ExpertsDenoiser(high, low, boundary)


def _published_sigma(model: ModelConfig, autoencoder: AutoencoderConfig, learns_variance: bool) -> bool:
    """Ask the weights whether they have a half for variance; fresh models have it if something reads it."""
    require_known("model.name", model.name, PRESETS)
    if model.weights is None or learns_variance or model.name in ADAPTED:
        return learns_variance
    patch_area = math.prod(PRESETS[model.name].patch_size)
    return weights.predicts_sigma(model.weights, latent_channels(autoencoder), patch_area)


def _build(config: Sizes, model: ModelConfig, device: torch.device, seed: int, *, mapped: bool) -> nn.Module:
    """Build a network on the CPU, or on `meta`; what its weights do not say is drawn.

    Mapped, the parameters of a network of diffusers are its file's tensors, in the file's dtypes and read when they are
    used.
    """
    if device.type == "meta":
        with device:
            return _network(config, model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        empty = mapped and model.weights is not None and model.name in ADAPTED
        with optional_imports.without_weights() if empty else contextlib.nullcontext():
            module = _network(config, model)
        try:
            _fill(module, config, model)
        except fit.ShapeMismatch as misfit:
            raise identify.explained(misfit, model.name) from misfit
    return module


def _network(config: Sizes, model: ModelConfig) -> nn.Module:
    count = 2 if model.experts == "both" else 1
    made = [networks.build(config, gradient_checkpointing=model.gradient_checkpointing) for _ in range(count)]
    return Experts(*made) if count == 2 else made[0]


def _fill(module: nn.Module, config: Sizes, model: ModelConfig) -> None:
    if isinstance(module, STDiT2):
        return stdit2_weights.fill(module, model.weights)
    if isinstance(module, STDiT3):
        return weights.fill(module, model.weights)
    assert not isinstance(config, STDiT2Config | STDiT3Config)
    if not isinstance(module, Experts):
        part = experts.PARTS.get(model.experts or "")
        return diffusers_denoiser.fill(module, config, model.weights, part)
    for part, one in module.named_children():
        diffusers_denoiser.fill(one, config, model.weights, part)
    pairs = zip(*(one.parameters() for one in module.children()), strict=True)
    if model.weights is not None and all(torch.equal(high, low) for high, low in pairs):
        raise UserError(
            "one network was found, and both experts would be it",
            field="model.weights",
            value=model.weights,
            remedy="name the folder or the hub id that holds transformer and transformer_2",
        )
    return None


def build_autoencoder(config: AutoencoderConfig) -> Autoencoder:
    """Build an autoencoder.

    Raises:
        UserError: If its name is unknown, or its weights cannot be loaded.
    """
    require_known("autoencoder.name", config.name, AUTOENCODERS)
    try:
        if config.name in published.AUTOENCODERS:
            return DiffusersAutoencoder(config)
        return PixelAutoencoder(config) if config.name == "pixel" else video.build(config)
    except fit.ShapeMismatch as misfit:
        raise identify.explained(misfit) from misfit


def build_text_encoder(config: TextConfig) -> TextEncoder:
    """Build a text encoder.

    Raises:
        UserError: If its name is unknown.
    """
    require_known("text.name", config.name, TEXT_ENCODERS)
    if config.name in published.TEXT_ENCODERS:
        return FamilyTextEncoder(config)
    return HashedTextEncoder(config) if config.name == "hashed" else T5TextEncoder(config)
