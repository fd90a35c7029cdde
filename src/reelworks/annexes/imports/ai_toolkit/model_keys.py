"""Translations of the settings of `network` and `model` to recipe keys."""

from __future__ import annotations

import re
from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.ai_toolkit import models, train_keys
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule

_BITS = {"8": "float8", "4": "nf4", "3": "nf4", "2": "nf4", "5": "float8", "6": "float8", "7": "float8"}

_FULL_RANK = 100_000  # above any width, so that both factors of a LoKr are full


def _network(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).lower()
    kind = "lokr" if name == "lokr" else "lora"
    remark = draft.set("lora.type", kind)
    blocks = draft.settings.get("network.transformer_only", True) is not False
    draft.set("lora.targets", "blocks", "all linear layers of the blocks")
    if name == "dora":
        draft.set("lora.dora", True)
    if name not in ("lora", "lokr", "dora", "locon", "lycoris"):
        return Fate.NOT_POSSIBLE, f"{remark} replaces it"
    if name in ("locon", "lycoris"):
        return Fate.NOT_POSSIBLE, f"{remark}: convolutions are not adapted"
    return (
        (Fate.TAKEN, remark) if blocks else (Fate.NOT_POSSIBLE, f"{remark}: layers outside the blocks are not adapted")
    )


def _rank(value: Any, draft: ImportDraft) -> Outcome:
    settings = draft.settings
    rank = settings.get("network.rank", settings.get("network.linear", 4))
    if draft.get("lora.type") == "lokr" and settings.get("network.lokr_full_rank", True) is not False:
        return Fate.TAKEN, f"{draft.set('lora.rank', _FULL_RANK)}: both factors are full matrices, which have no rank"
    return Fate.TAKEN, draft.set("lora.rank", rank)


def _alpha(value: Any, draft: ImportDraft) -> Outcome:
    settings = draft.settings
    if draft.get("lora.type") == "lokr" and settings.get("network.lokr_full_rank", True) is not False:
        return Fate.NO_MEANING, "a LoKr of two full factors has no scale"
    if models.is_transformer(settings):
        return (
            Fate.NO_MEANING,
            "ai-toolkit scales LoRAs of transformers by 1, whatever alpha says, as here without lora.alpha",
        )
    alpha = settings.get("network.linear_alpha", settings.get("network.alpha", 1.0))
    return Fate.TAKEN, draft.set("lora.alpha", float(alpha))


def _convolutions(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if models.is_transformer(draft.settings):
        return Fate.NO_MEANING, "blocks of transformers have no convolutions"
    return Fate.NOT_POSSIBLE, "convolutions are not adapted"


def _factor(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("lora.type") != "lokr":
        return Fate.NO_MEANING, "it belongs to lokr"
    if value == -1:
        return Fate.DEFAULT, "factors as near in size as possible"
    return Fate.TAKEN, draft.set("lora.decompose_factor", value)


def _layers(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "all linear layers of the blocks"
    names = [value] if isinstance(value, str) else [str(name) for name in value]
    if draft.key.endswith("ignore_if_contains") or any(name.endswith(".") for name in names):
        return Fate.NOT_POSSIBLE, 'parts of names are not compared: list layers in lora.targets; "blocks" until then'
    targets = [re.sub(r"^(?:transformer|diffusion_model|unet)\.", "", name) for name in names]
    return Fate.TAKEN, f"{draft.set('lora.targets', targets)}: complete names of layers, or their last parts"


def _from_lora(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.TAKEN, draft.set("lora.weights", str(value))) if value else (Fate.DEFAULT, "none")


def _quantised(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if not has_network(draft.settings):
        return Fate.NOT_POSSIBLE, "all weights are trained, which are not quantised"
    kind = str(draft.settings.get("model.qtype", "qfloat8"))
    name, _, adapter = kind.partition("|")
    bits = re.search(r"\d+", name.replace("fp", "").replace("float", ""))
    base = _BITS.get(bits[0], "float8") if bits else "float8"
    if "int8" in name:
        base = "int8"
    remark = draft.set("lora.base", base)
    exact = base in ("float8", "int8") and not adapter and name in ("qfloat8", "float8", "qint8", "int8")
    if exact:
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"{remark} replaces {name}" + (
        ", without the adapter that recovers accuracy" if adapter else ""
    )


def _offloaded(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.TAKEN, draft.set("parallel.offload", True)) if value else (Fate.DEFAULT, "off")


def _experts(value: Any, draft: ImportDraft) -> Outcome:
    high, low = (draft.settings.get(f"model.model_kwargs.train_{which}_noise", True) for which in ("high", "low"))
    if draft.get("model.experts") is None:
        return Fate.NO_MEANING, "the model has one network"
    return Fate.TAKEN, draft.set("model.experts", "both" if high and low else "high" if high else "low")


def _weights_named(value: Any, draft: ImportDraft) -> Outcome:
    weights = draft.get("model.weights")
    if str(value).startswith("ai-toolkit/"):
        return Fate.TAKEN, f'model.weights = "{weights}", of which it is a copy'
    return Fate.TAKEN, f'model.name = "{draft.get("model.name")}", model.weights = "{weights}"'


def _component(target: str) -> Rule:
    return lambda value, draft: (
        (Fate.TAKEN, draft.set(target, str(value))) if value else (Fate.DEFAULT, "the release's own")
    )


def has_network(settings: FormerSettings) -> bool:
    """Whether a LoRA is trained, and not all weights."""
    return any(key == "network" or key.startswith("network.") for key in settings.values)


RULES: dict[str, Rule] = {
    "network": rules.impossible("give it the rank, as in linear: 16"),
    "network.type": _network,
    "network.rank": _rank,
    "network.linear": _rank,
    "network.alpha": _alpha,
    "network.linear_alpha": _alpha,
    "network.conv": _convolutions,
    "network.conv_alpha": rules.without_meaning("convolutions are not adapted"),
    "network.dropout": rules.to("lora.dropout", none=0.0),
    "network.network_kwargs.only_if_contains": _layers,
    "network.network_kwargs.ignore_if_contains": _layers,
    "network.network_kwargs.*": rules.impossible("it is not there: leave it out"),
    "network.network_kwargs": rules.without_meaning("empty"),
    "network.lorm.*": rules.impossible("LoRM is not there"),
    "network.transformer_only": rules.only(
        (True,), "layers of the blocks", "layers outside the blocks are not adapted"
    ),
    "network.lokr_full_rank": rules.read_with("network.type"),
    "network.lokr_factor": _factor,
    "network.old_lokr_format": rules.without_meaning("exports.formats decides on the file"),
    "network.split_multistage_loras": rules.without_meaning("each network of a pair has its own file"),
    "network.layer_offloading": rules.impossible("the LoRA stays on the GPU"),
    "network.pretrained_lora_path": _from_lora,
    "network.all_layers": rules.impossible("norms and embeddings are not trained with a LoRA"),
    "model.arch": lambda value, draft: (Fate.TAKEN, f'model.name = "{draft.get("model.name")}"'),
    "model.name_or_path": _weights_named,
    **{
        f"model.{switch}": lambda value, draft: (
            (Fate.TAKEN, f'model.name = "{draft.get("model.name")}"') if value else (Fate.DEFAULT, "off")
        )
        for switch in (
            *(
                "is_v2",
                "is_v3",
                "is_xl",
                "is_pixart",
                "is_pixart_sigma",
                "is_auraflow",
                "is_flux",
                "is_lumina2",
                "is_vega",
            ),
            "is_ssd",
        )
    },
    "model.is_v_pred": lambda value, draft: (
        (Fate.TAKEN, draft.set("objective.name", "v-prediction")) if value else (Fate.DEFAULT, "off")
    ),
    "model.dtype": rules.without_meaning("train.dtype decides, there too"),
    "model.vae_path": _component("autoencoder.weights"),
    "model.te_name_or_path": _component("text_encoder.weights"),
    "model.extras_name_or_path": lambda value, draft: (
        (Fate.TAKEN, f"{draft.set('autoencoder.weights', str(value))}, {draft.set('text_encoder.weights', str(value))}")
        if value
        else (Fate.DEFAULT, "the release's own")
    ),
    "model.unet_path": rules.impossible("point model.weights to the file of the denoiser"),
    "model.unet_sample_size": rules.without_meaning("sizes come from [[bucket]]s"),
    "model.refiner_name_or_path": rules.impossible("there is no refiner"),
    "model.refiner_start_at": rules.without_meaning("there is no refiner"),
    "model.lora_path": rules.impossible("merge that LoRA into the weights, and point model.weights to them"),
    "model.assistant_lora_path": lambda value, draft: (
        (Fate.TAKEN, draft.set("lora.training_adapter", str(value))) if value else (Fate.DEFAULT, "none")
    ),
    "model.inference_lora_path": rules.impossible(
        "previews have the trained LoRA alone; samples.model shows it on another base"
    ),
    "model.unconditional_lora_path": rules.impossible(train_keys.OTHER_LOSS),
    "model.latent_space_version": rules.without_meaning("stored latents are found by their request"),
    "model.use_flux_cfg": rules.impossible(train_keys.OTHER_LOSS),
    "model.use_text_encoder_1": rules.only((True,), "all text encoders", "all text encoders are used"),
    "model.use_text_encoder_2": rules.only((True,), "all text encoders", "all text encoders are used"),
    "model.experimental_xl": rules.without_meaning("the weights decide"),
    "model.text_encoder_bits": rules.only((16,), "16", "set encode.store, which needs no text encoder in memory"),
    "model.quantize": _quantised,
    "model.qtype": rules.read_with("model.quantize"),
    "model.quantize_te": rules.impossible(
        'text encoders are not quantised: set encode.store = true or text_encoder.device = "cpu" to save memory'
    ),
    "model.qtype_te": rules.without_meaning("text encoders are not quantised"),
    "model.quantize_kwargs.*": rules.impossible("the linear layers of all blocks are quantised"),
    "model.quantize_kwargs": rules.without_meaning("empty"),
    "model.accuracy_recovery_adapter": rules.impossible("weights are quantised without such an adapter"),
    "model.low_vram": rules.without_meaning(
        "weights are quantised on their way to the GPU; parallel.offload saves more"
    ),
    "model.auto_memory": _offloaded,
    "model.layer_offloading": _offloaded,
    "model.layer_offloading_transformer_percent": rules.without_meaning("parallel.offload is for all blocks"),
    "model.layer_offloading_text_encoder_percent": rules.without_meaning(
        'text_encoder.device = "cpu" is for all of it'
    ),
    "model.attn_masking": rules.impossible("the padding of captions is not masked, as in the release"),
    "model.ignore_if_contains": rules.impossible("all layers are trained, or those of lora.targets"),
    "model.only_if_contains": rules.impossible("all layers are trained, or those of lora.targets"),
    "model.split_model_over_gpus": rules.impossible(
        'parallel.strategy = "fsdp" with torchrun shares weights between GPUs'
    ),
    "model.split_model_other_module_param_count_scale": rules.without_meaning("it belongs to split_model_over_gpus"),
    "model.compile": rules.to("train.compile", none=False),
    "model.block_compile": rules.without_meaning("train.compile compiles blocks"),
    "model.compile_mode": rules.without_meaning("train.compile_backend decides"),
    "model.compile_fullgraph": rules.without_meaning("blocks are compiled as whole graphs where they can be"),
    "model.compile_dynamic": rules.without_meaning("train.compile_graphs limits the number of graphs"),
    "model.cache_size_limit": rules.without_meaning("train.compile_graphs limits the number of graphs"),
    "model.model_kwargs.train_high_noise": _experts,
    "model.model_kwargs.train_low_noise": _experts,
    "model.model_kwargs.match_target_res": rules.without_meaning("sources have the size of their clip's bucket"),
    "model.model_kwargs.*": rules.impossible("it is not there"),
    "model.model_kwargs": rules.without_meaning("empty"),
    "model.model_paths.*": rules.impossible(
        "point model.weights, autoencoder.weights and text_encoder.weights to the files"
    ),
    "model.model_paths": rules.without_meaning("empty"),
    "model.in_context": rules.impossible("set dataset.source for a model that takes it"),
    "model.vae_device": rules.without_meaning("encode.store leaves the autoencoder out of memory"),
    "model.vae_dtype": rules.by_name("autoencoder.dtype", train_keys.DTYPES, "float32", "this dtype is not there"),
    "model.te_device": rules.by_name(
        "text_encoder.device", {"cpu": "cpu"}, "auto", "it is on the model's device, or on the CPU"
    ),
    "model.te_dtype": rules.without_meaning("text encoders compute as in their release"),
}
