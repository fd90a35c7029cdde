"""From configs to running models: the one place that knows every family."""

from __future__ import annotations

import math

import torch

from reelworks.models.api import INPUT_ROLES, Autoencoder, Denoiser, TextEncoder
from reelworks.models.autoencoders.pixel import PixelAutoencoder
from reelworks.models.config import (
    AUTOENCODERS,
    TEXT_ENCODERS,
    AutoencoderConfig,
    ModelConfig,
    TextConfig,
    latent_channels,
    require_known,
    resolve_denoiser,
)
from reelworks.models.stdit3 import weights
from reelworks.models.stdit3.adapter import STDiT3Denoiser
from reelworks.models.stdit3.config import PRESETS, STDiT3Config
from reelworks.models.stdit3.model import STDiT3
from reelworks.models.text.hashed import HashedTextEncoder
from reelworks.precision.boundary import check_contract
from reelworks.precision.contract import Contract


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

    Raises:
        UserError: If a name is unknown, sizes or dtypes do not fit, or weights cannot be loaded.
    """
    contract = Contract(
        storage=storage,
        compute=compute,
        master=torch.float32,
        reduction=reduction,
        output=torch.float32,
        roles=INPUT_ROLES,
    )
    check_contract(contract)
    pred_sigma = _published_sigma(model, autoencoder)
    config = resolve_denoiser(model, autoencoder=autoencoder, text=text, pred_sigma=pred_sigma)
    return STDiT3Denoiser(_build_stdit3(config, model, torch.device(device), seed).to(storage), contract)


def _published_sigma(model: ModelConfig, autoencoder: AutoencoderConfig) -> bool:
    """Ask the weights whether they have a half for variance; fresh models have none to waste work on."""
    require_known("model.name", model.name, PRESETS)
    if model.weights is None:
        return False
    patch_area = math.prod(PRESETS[model.name].patch_size)
    return weights.predicts_sigma(model.weights, latent_channels(autoencoder), patch_area)


def _build_stdit3(config: STDiT3Config, model: ModelConfig, device: torch.device, seed: int) -> STDiT3:
    if device.type == "meta":
        with device:
            return STDiT3(config, gradient_checkpointing=model.gradient_checkpointing)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = STDiT3(config, gradient_checkpointing=model.gradient_checkpointing)
        if model.weights is None:
            weights.init(module)
    if model.weights is not None:
        weights.load(module, model.weights)
    return module.to(device)


def build_autoencoder(config: AutoencoderConfig) -> Autoencoder:
    """Build an autoencoder.

    Raises:
        UserError: If its name is unknown.
    """
    require_known("autoencoder.name", config.name, AUTOENCODERS)
    return PixelAutoencoder(config)


def build_text_encoder(config: TextConfig) -> TextEncoder:
    """Build a text encoder.

    Raises:
        UserError: If its name is unknown.
    """
    require_known("text.name", config.name, TEXT_ENCODERS)
    return HashedTextEncoder(config)
