"""Build denoisers, autoencoders and text encoders from their configs."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.data.distributed.contract import Contract, name_of
from reelworks.models import identify, meta_init, registry
from reelworks.models.adapters import files, frozen, inject
from reelworks.models.adapters.config import BaseStorage, LoraConfig
from reelworks.models.adapters.training_adapter import TrainingAdapter
from reelworks.models.api import INPUT_ROLES, Autoencoder, Denoiser, FamilyNetwork, TextEncoder
from reelworks.models.autoencoders import opensora, pca
from reelworks.models.autoencoders.diffusers_kl import DiffusersAutoencoder
from reelworks.models.autoencoders.pixel import PixelAutoencoder
from reelworks.models.base_model import Base, digest
from reelworks.models.components import family_config, latent_channels, resolve_denoiser, sound_facts
from reelworks.models.config import (
    AutoencoderConfig,
    ModelConfig,
    TextEncoderConfig,
    autoencoder_names,
    require_known,
    text_encoder_names,
)
from reelworks.models.diffusers_denoiser import FamilyDenoiser
from reelworks.models.expert_pair.config import PARTS, switch_timestep
from reelworks.models.expert_pair.denoiser import ExpertPairDenoiser
from reelworks.models.family import FamilyConfig
from reelworks.models.precision.boundary import check_contract
from reelworks.models.sound.config import SoundConfig
from reelworks.models.sound.encoder import PcmSound, SoundEncoder
from reelworks.models.storage import stored_weights, weights
from reelworks.models.storage.gguf_files import GgufWeight
from reelworks.models.storage.stored_weights import stored_weight
from reelworks.models.text.encoders import FamilyTextEncoder, T5TextEncoder
from reelworks.models.text.hashed import HashedTextEncoder
from reelworks.models.text.trained_texts import CaptionedDenoiser, CaptionNumbers, captioned


def denoiser_contract(
    storage: torch.dtype, compute: torch.dtype, reduction: torch.dtype, base: BaseStorage = "float32"
) -> Contract:
    """Return the dtypes of a denoiser: the recipe's choices, and float32 for the rest."""
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
    text: TextEncoderConfig,
    device: torch.device | str,
    seed: int,
    compute: torch.dtype = torch.float32,
    storage: torch.dtype = torch.float32,
    reduction: torch.dtype = torch.float32,
    learns_variance: bool = False,
    lora: LoraConfig | None = None,
    sound: SoundConfig | None = None,
    part: str | None = None,
) -> Denoiser:
    """Build a denoiser with its weights; the autoencoder fixes its latent channels, the text encoder its captions.

    Args:
        device: Device of the parameters; on `meta` nothing is drawn or loaded.
        seed: Seed of fresh weights, which are equal on every device; the global generators keep their state.
        reduction: Dtype in which gradients are summed over ranks.
        learns_variance: Whether the objective reads a second half of channels.
        lora: Low-rank updates, the only trained parameters then, and how the base weights are stored.
        sound: Sound encoder of a model that is trained with sound; it fixes the features of its latents.
        part: Folder of the network's weights, if it is another one than the model's.
    """
    base = None if lora is None else lora.exact_base(name_of(compute))
    contract = denoiser_contract(storage, compute, reduction, base or "float32")
    check_contract(contract)
    preset, channels = family_config(model), latent_channels(autoencoder)
    family = registry.load_network(registry.family_of(model.name))
    if not learns_variance and model.weights is not None:
        learns_variance = family.learns_variance(preset, model.weights, channels)
    config = resolve_denoiser(model, autoencoder=autoencoder, text=text, learns_variance=learns_variance, sound=sound)
    device = torch.device(device)
    networks = build_base(family, config, model, device=device, seed=seed, base=base, part=part)
    experts = [family.denoiser(network, contract, config, channels) for network in networks]
    denoiser = experts[0]
    if len(experts) == 2:
        high, low = experts
        switch = switch_timestep(model)
        assert switch is not None, "the recipe was checked"
        assert isinstance(high, FamilyDenoiser)
        assert isinstance(low, FamilyDenoiser)
        denoiser = ExpertPairDenoiser(high, low, switch)
    if lora is not None and lora.text_encoders:
        assert isinstance(denoiser, FamilyDenoiser), "the recipe was checked"
        denoiser = captioned(denoiser, text, device=device, recomputed=model.gradient_checkpointing)
    if lora is None:
        nn.Module.to(denoiser.module, device, storage)
    else:
        adapt(denoiser, experts, lora, config, model, device=device, seed=seed)
    return denoiser


def build_base(
    family: FamilyNetwork,
    config: FamilyConfig,
    model: ModelConfig,
    *,
    device: torch.device,
    seed: int,
    base: BaseStorage | None,
    part: str | None = None,
) -> list[nn.Module]:
    """Build a network or both experts with weights on the CPU, drawn without a file, or without values on `meta`.

    With the `base` of a LoRA, parameters of a diffusers network are memory-mapped tensors of the file, in its dtypes.
    """
    parts = [*PARTS.values()] if model.experts == "both" else [part or PARTS.get(model.experts or "")]
    mapped = base is not None and model.weights is not None and family.keeps_file_tensors

    def build_all() -> list[nn.Module]:
        return [family.build(config, gradient_checkpointing=model.gradient_checkpointing) for _ in parts]

    def load() -> None:
        try:
            for network, part in zip(networks, parts, strict=True):
                family.load(network, config, model.weights, part)
        except weights.ShapeMismatch as misfit:
            raise identify.explain(misfit, model.name) from misfit

    if device.type == "meta":
        with meta_init.build_on_meta():
            networks = build_all()
        if mapped and base == "gguf":  # the file tells the sizes of its codes
            load()
    else:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds those of GPUs too, which are not kept
            with optional_imports.without_weights() if mapped else contextlib.nullcontext():
                networks = build_all()
            load()
        if model.weights is not None and len(networks) == 2:
            pairs = zip(*(network.parameters() for network in networks), strict=True)
            if all(torch.equal(*(stored_weights.value(weight).float() for weight in pair)) for pair in pairs):
                raise UserError(
                    "only one network was found, and both experts would get its weights",
                    code="expert-missing",
                    field="model.weights",
                    value=model.weights,
                    remedy="set it to the folder or hub id that holds transformer and transformer_2",
                )
    parameters = [parameter for each in networks for parameter in each.parameters()]
    if base == "gguf" and not any(isinstance(stored_weight(p), GgufWeight) for p in parameters):
        raise UserError(
            "there are no codes of a GGUF file to keep",
            code="lora-base-not-gguf",
            field="lora.base",
            value=base,
            remedy="point model.weights to a GGUF file of a model of diffusers, or choose another base",
        )
    return networks


def adapt(
    denoiser: Denoiser,
    experts: Sequence[Denoiser],
    lora: LoraConfig,
    config: FamilyConfig,
    model: ModelConfig,
    *,
    device: torch.device,
    seed: int,
) -> None:
    """Freeze a denoiser's weights, stored as its contract says, and add the layers of a LoRA, which alone are trained."""
    compute, has_values = denoiser.contract.compute, device.type != "meta"
    if has_values:
        captions = denoiser.texts if isinstance(denoiser, CaptionedDenoiser) else None
        network = denoiser.module if captions is None else experts[0].module
        denoiser.base = Base(
            model.name,
            model.weights,
            digest(network.state_dict(keep_vars=True)),
            text_encoders=None if captions is None else digest(captions.state_dict(keep_vars=True)),
        )
    blocks = [block for each in experts for block in each.sharding().blocks]
    base = lora.exact_base(name_of(compute))
    frozen.store(denoiser.module, blocks, base, compute=compute, device=device, int8_products=lora.int8_products)
    if lora.training_adapter is not None and denoiser.base is not None:
        adapter = TrainingAdapter.read(lora.training_adapter)
        for each in experts:
            adapter.attach(each.module, config)
        denoiser.base = denoiser.base._replace(training_adapter=adapter.digest())
    inject.inject(denoiser, lora, seed=seed)
    if lora.weights is not None and has_values:
        files.load_into(denoiser.module, lora, config)


def build_autoencoder(config: AutoencoderConfig) -> Autoencoder:
    """Build an autoencoder with its weights."""
    require_known("autoencoder.name", config.name, autoencoder_names())
    try:
        if config.name in registry.AUTOENCODERS:
            module = registry.AUTOENCODERS[config.name].module
            if not module:
                return DiffusersAutoencoder(config)
            built: Autoencoder = importlib.import_module(module).build(config)
            return built
        own: dict[str, Callable[[AutoencoderConfig], Autoencoder]] = {"pixel": PixelAutoencoder, "pca": pca.build}
        return own.get(config.name, opensora.build)(config)
    except weights.ShapeMismatch as misfit:
        raise identify.explain(misfit) from misfit


def build_sound_encoder(config: SoundConfig) -> SoundEncoder:
    """Build a sound encoder with its weights."""
    facts = sound_facts(config)
    if config.weights is None:
        return PcmSound(facts)
    built: SoundEncoder = importlib.import_module(facts.module).build(config.weights, facts)
    return built


def build_text_encoder(config: TextEncoderConfig, *, trained: bool = False) -> TextEncoder:
    """Build a text encoder with its weights; if it is `trained`, they are in the network, and this has numbers of words."""
    require_known("text_encoder.name", config.name, text_encoder_names())
    if trained:
        return CaptionNumbers(config)
    if config.name in registry.TEXT_ENCODERS:
        return FamilyTextEncoder(config)
    return HashedTextEncoder(config) if config.name == "hashed" else T5TextEncoder(config)
