"""Parts of OneTrainer's models and its optimizer, and translations of what a config says of each part."""

from __future__ import annotations

import sys
from typing import Any

from reelworks.annexes.imports import datasets, optimizers, rules, tables, values
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.onetrainer import models
from reelworks.annexes.imports.onetrainer.models import OneTrainerModel
from reelworks.annexes.imports.rules import Fate, Outcome, Rule

_OF_RELEASE = (Fate.NO_MEANING, "the parts of the release are taken, and stay unchanged")
_BASES = {
    **dict.fromkeys(("FLOAT_8", "FLOAT_W8A8", "FLOAT_W8A8_COMPRESSED"), "float8"),
    **dict.fromkeys(("INT_8", "INT_W8A8", "INT_W8A8_COMPRESSED"), "int8"),
    "NFLOAT_4": "nf4",
    "BFLOAT_16": "bfloat16",
    "FLOAT_32": "float32",
}
_SIZE_OF_WEIGHTS = 0.03  # root mean square of the matrices of these networks, by which Adafactor's rate is multiplied
PARTS = (
    *("unet", "prior", "transformer", "unconditional_transformer", "text_encoder", "text_encoder_2", "text_encoder_3"),
    *("text_encoder_4", "vae", "effnet_encoder", "decoder", "decoder_text_encoder", "decoder_vqgan"),
)
_OPTIMIZERS = optimizers.of_trainer("onetrainer")  # their settings are those of `modules/util/optimizer_util.py`


def model_of(draft: ImportDraft) -> OneTrainerModel:
    """Return the model; one that is not here was refused before."""
    return models.MODELS.get(str(draft.settings.get("model_type")), models.MODELS["FLUX_DEV_1"])


def trains_adapter(draft: ImportDraft) -> bool:
    """Whether a LoRA or another adapter is trained, and not all weights."""
    return bool(draft.settings.get("training_method") == "LORA")


def _base_model(value: Any, draft: ImportDraft) -> Outcome:
    if "://" in values.text(value):
        return Fate.TO_FILL_IN, "download the file, and set model.weights to its path"
    return Fate.TAKEN, f"model.weights = {draft.get('model.weights')!r}"


def _weight_dtype(value: Any, draft: ImportDraft) -> Outcome:
    if not trains_adapter(draft):
        kept = value in ("FLOAT_32", "BFLOAT_16")
        remark = "weights are trained in float32, which the products of precision.compute are rounded from"
        return (Fate.DEFAULT, remark) if kept else (Fate.NOT_POSSIBLE, remark)
    compute = draft.get("precision.compute")
    if value == "FLOAT_16" or _BASES.get(value) == compute or (value == "BFLOAT_16" and compute == "float32"):
        return Fate.DEFAULT, f"the frozen weights have the dtype of products, {compute}"
    if value in ("GGUF", "GGUF_A8_FLOAT", "GGUF_A8_INT"):
        if str(draft.get("model.weights")).endswith(".gguf"):
            return Fate.TAKEN, draft.set("lora.base", "gguf")
        return Fate.TO_FILL_IN, 'name the .gguf file as model.weights, and set lora.base = "gguf"'
    return rules.by_name(value, draft, "lora.base", _BASES, "int8", "this storage is not supported")


def set_rate(value: Any, draft: ImportDraft) -> Outcome:
    """Take the learning rate of the network."""
    rate = values.number(value, 1e-300) * rate_scale(draft) ** 0.5
    is_share = optimizer_setting(draft.settings, "scale_parameter") is not True
    if draft.get("train.optimizer") == "adafactor" and is_share:
        remark = draft.set("train.learning_rate", float(f"{rate / _SIZE_OF_WEIGHTS:.3g}"))
        return Fate.NOT_POSSIBLE, (
            f"{remark}: here it is a share of the size of the weights, which is about {_SIZE_OF_WEIGHTS} in these networks"
        )
    return optimizers.rate(rate, draft)


def processes(settings: FormerSettings) -> int:
    """Return the number of processes, each with batches of its own."""
    devices = [each for each in str(settings.get("device_indexes", "")).split(",") if each.strip()]
    return max(len(devices), 1) if settings.get("multi_gpu") is True else 1


def rate_scale(draft: ImportDraft) -> int:
    """Return the number by whose root the learning rate is multiplied."""
    batch, steps = (draft.settings.get(key, 1) for key in ("batch_size", "gradient_accumulation_steps"))
    kind = str(draft.settings.get("learning_rate_scaler", "NONE"))
    scale = processes(draft.settings) if kind.startswith("GLOBAL_") else 1
    if kind in ("BATCH", "GLOBAL_BATCH", "BOTH", "GLOBAL_BOTH"):
        scale *= values.whole(batch)
    if kind in ("GRADIENT_ACCUMULATION", "BOTH", "GLOBAL_BOTH"):
        scale *= values.whole(steps)
    return scale


def optimizer_name(settings: FormerSettings) -> str:
    """Return the optimizer's name there."""
    return str(settings.get("optimizer.optimizer", "ADAMW"))


def optimizer_of(settings: FormerSettings) -> optimizers.FormerOptimizer:
    """Return the optimizer."""
    return tables.fitting(_OPTIMIZERS, optimizer_name(settings))


def optimizer_setting(settings: FormerSettings, key: str) -> Any:
    """Return a setting of the optimizer: its own, or what the window remembers for it, or its default."""
    places = ("optimizer", f"optimizer_defaults.{optimizer_name(settings)}")
    given = (settings.get(f"{place}.{key}") for place in places)
    return next((value for value in given if value is not None), optimizer_of(settings).settings.get(key))


def _offload(value: Any, draft: ImportDraft) -> Outcome:
    base = _BASES.get(draft.settings.get(f"{model_of(draft).part}.weight_dtype"))
    return datasets.offload(draft, is_quantised=base in ("float8", "int8", "nf4"))


def _text_trained(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    if _trains_texts(draft):
        return rules.train_texts(draft)
    return Fate.NOT_POSSIBLE, "text encoders are trained all together, and with a LoRA alone"


def _trains_texts(draft: ImportDraft) -> bool:
    trained = (draft.settings.get(f"{part}.train", True) is True for part in model_of(draft).texts)
    return trains_adapter(draft) and all(trained)


def _text_rate(value: Any, draft: ImportDraft) -> Outcome:
    """Take the rate of the first text encoder, if they are trained; here it is that of all."""
    if value is None:
        return Fate.DEFAULT, "learning_rate decides"
    if not _trains_texts(draft) or rules.train_texts(draft)[0] is not Fate.TAKEN:
        return Fate.NO_MEANING, "it is not trained"
    first = draft.settings.get("text_encoder.learning_rate")
    if draft.key.partition(".")[0] != "text_encoder" and first is not None:
        return (
            (Fate.DEFAULT, "for all text encoders")
            if value == first
            else (Fate.NOT_POSSIBLE, "for all text encoders together: text_encoder.learning_rate decides")
        )
    rate = values.number(value, 1e-300) * rate_scale(draft) ** 0.5
    return rules.text_rate(rate, draft, draft.settings.get("optimizer.optimizer"))


def _caption_dropout(value: Any, draft: ImportDraft) -> Outcome:
    """Take the share of captions that are dropped for the first encoder; here they are dropped for all."""
    share = values.number(value, 0, 1)
    if draft.key.partition(".")[0] == "text_encoder":
        return Fate.TAKEN, draft.set("objective.caption_dropout", share)
    same = share == values.number(draft.settings.get("text_encoder.dropout_probability", 0.0))
    if same:
        return Fate.DEFAULT, "for all text encoders"
    return Fate.NOT_POSSIBLE, "for all text encoders together: text_encoder.dropout_probability decides"


def _guidance(value: Any, draft: ImportDraft) -> Outcome:
    if datasets.conditioning_of(draft).guidance != "embedded":
        return Fate.NO_MEANING, "guidance is no input of this model"
    return rules.only(value, draft, (1, 1.0), "as here", "it is trained at a guidance of 1")


_OF_TEXT = {"train": _text_trained, "learning_rate": _text_rate, "dropout_probability": _caption_dropout}
_OF_DENOISER = tables.read("onetrainer", "parts", sys.modules[__name__])


def of_parts() -> dict[str, Rule]:
    """Return the rules of what a config says of each part."""
    found = dict.fromkeys((f"{part}.{field}" for part in PARTS for field in _OF_DENOISER), _of_part)
    version = (Fate.NO_MEANING, "the version of the table")
    return found | dict.fromkeys((f"{part}.__version" for part in PARTS), lambda *_: version)


def _of_part(value: Any, draft: ImportDraft) -> Outcome:
    model, (part, field) = model_of(draft), draft.key.split(".", 1)
    if part == model.part:
        return _OF_DENOISER[field](value, draft)
    if part in model.texts and field in _OF_TEXT:
        return _OF_TEXT[field](value, draft)
    is_there = part in (*model.texts, "vae")
    return _OF_RELEASE if is_there else (Fate.NO_MEANING, "it is no part of this model")
