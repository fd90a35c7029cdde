"""Translations of OneTrainer's settings to recipe keys, apart from those of concepts and samples."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from reelworks.compat import datasets, rules, values
from reelworks.compat.draft import ImportDraft
from reelworks.compat.onetrainer import layers, models, optimizers
from reelworks.compat.onetrainer.models import OneTrainerModel
from reelworks.compat.rules import Fate, Outcome, Rule
from reelworks.compat.trainer import choose_model, find_model
from reelworks.core.errors import UserError
from reelworks.core.toml_none import WORD as NONE
from reelworks.models import registry

_WINDOW = rules.without_meaning("a setting of the window")
_SPEED = rules.without_meaning("it only affects speed and memory")
_OF_RELEASE = rules.without_meaning("the parts of the release are taken, and stay unchanged")
_DTYPES = {"BFLOAT_16": "bfloat16", "FLOAT_32": "float32", "TFLOAT_32": "float32"}
_EXPORTED = {"BFLOAT_16": "bfloat16", "FLOAT_16": "float16", "FLOAT_32": "float32"}
_BASES = {
    **dict.fromkeys(("FLOAT_8", "FLOAT_W8A8", "FLOAT_W8A8_COMPRESSED"), "float8"),
    **dict.fromkeys(("INT_8", "INT_W8A8", "INT_W8A8_COMPRESSED"), "int8"),
    "NFLOAT_4": "nf4",
    "BFLOAT_16": "bfloat16",
    "FLOAT_32": "float32",
}
_FORMATS = {"DIFFUSERS_LORA": "diffusers", "COMFY_LORA": "comfyui", "ORIGINAL_LORA": "comfyui", "KOHYA_LORA": "kohya"}
_TYPES = {"LORA": "lora", "LOHA": "loha", "LOKR": "lokr", "OFT_2": "oft"}
_MOST_RANK = 100_000  # of a LoKr whose second factor is to be a full matrix
_SIZE_OF_WEIGHTS = 0.03  # root mean square of the matrices of these networks, by which Adafactor's rate is multiplied
_MINUTES = {"SECOND": 1 / 60, "MINUTE": 1.0, "HOUR": 60.0}
PARTS = (
    *("unet", "prior", "transformer", "unconditional_transformer", "text_encoder", "text_encoder_2", "text_encoder_3"),
    *("text_encoder_4", "vae", "effnet_encoder", "decoder", "decoder_text_encoder", "decoder_vqgan"),
)
_DEFAULTS: dict[str, Any] = {
    "training_method": "FINE_TUNE",
    "model_type": "STABLE_DIFFUSION_15",
    "learning_rate": 3e-6,
    "learning_rate_warmup_steps": 200.0,
    "epochs": 100,
    "gradient_accumulation_steps": 1,
    "ema": "OFF",
    "train_dtype": "FLOAT_16",
    "output_dtype": "FLOAT_32",
    "clip_grad_norm": 1.0,
    "timestep_distribution": "UNIFORM",
    "timestep_shift": 1.0,
    "latent_caching": True,
    "backup_after": 30,
    "save_every": 0,
    "optimizer.optimizer": "ADAMW",
    "optimizer.beta1": None,
    "optimizer.eps": None,
    "optimizer.weight_decay": None,
}
_OF_LORA: dict[str, Any] = {"peft_type": "LORA", "lora_rank": 16, "lora_alpha": 1.0, "layer_filter": None}
FIRST = ("model_type", "training_method", "optimizer.optimizer", "train_dtype", "peft_type")


def defaults(draft: ImportDraft) -> dict[str, Any]:
    """Return the defaults that differ here, of the parts of the model and of what is trained."""
    model = model_of(draft)
    found = _DEFAULTS | {f"{part}.train": True for part in model.texts}
    found |= {f"{model.part}.gradient_checkpointing": True, f"{model.part}.weight_dtype": "FLOAT_32"}
    found |= _OF_LORA if trains_adapter(draft) else {}
    return found | ({"sample_after": 10} if draft.settings.count("samples") else {})


def model_of(draft: ImportDraft) -> OneTrainerModel:
    """Return the model; one that is not here was refused before."""
    return models.MODELS.get(str(draft.settings.get("model_type")), models.MODELS["FLUX_DEV_1"])


def trains_adapter(draft: ImportDraft) -> bool:
    """Whether a LoRA or another adapter is trained, and not all weights."""
    return bool(draft.settings.get("training_method") == "LORA")


def is_rectified_flow(draft: ImportDraft) -> bool:
    """Whether the model in the draft is trained with rectified flow."""
    return bool(draft.get("objective.name", "rectified-flow") == "rectified-flow")


def _model_type(value: Any, draft: ImportDraft) -> Outcome:
    texts = [str(draft.settings.get(key) or "") for key in ("base_model_name", "transformer.model_name")]
    preset = find_model(draft, "model_type", models.names_of(str(value), *texts))
    remark = choose_model(draft, preset, _weights_of(preset, *texts))
    draft.set("train.loss_reduction", "sample", "all clips of a step count alike")
    draft.set("validation.split", 0.0, "no clips are kept back")
    if datasets.conditioning_of(draft).guidance != "embedded":
        draft.set("objective.caption_dropout", 0.0, "captions are not dropped")
    draft.set("checkpoints.every_steps", None, "there is no such interval")
    return Fate.TAKEN, remark


def _weights_of(preset: str, base: str, transformer: str) -> str | None:
    """Return a file or folder other than the published one; addresses of files must be downloaded first."""
    if transformer and "://" not in transformer:
        return transformer
    known = registry.release_of(preset).weights or ""
    return base if base and base != known and registry.find(base) != preset and "://" not in base else None


def _base_model(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "the published weights"
    if "://" in values.text(value):
        return Fate.TO_FILL_IN, "download the file, and set model.weights to its path"
    return Fate.TAKEN, f"model.weights = {draft.get('model.weights')!r}"


def _method(value: Any, draft: ImportDraft) -> Outcome:
    if value == "LORA":
        return Fate.TAKEN, "[lora]"
    if value == "FINE_TUNE":
        return Fate.TAKEN, "all weights are trained: there is no [lora]"
    raise UserError(
        "embeddings are not trained here" if value == "EMBEDDING" else "this kind of training is not possible here",
        code="training-not-possible",
        field="training_method",
        value=value,
        remedy='train a LoRA: set training_method to "LORA"',
    )


def _dtype(value: Any, draft: ImportDraft) -> Outcome:
    return rules.by_name("precision.compute", _DTYPES, "bfloat16", "products in this dtype are not possible")(
        value, draft
    )


def _weight_dtype(value: Any, draft: ImportDraft) -> Outcome:
    if not trains_adapter(draft):
        kept = value in ("FLOAT_32", "BFLOAT_16")
        told = "weights are trained in float32, which the products of precision.compute are rounded from"
        return (Fate.DEFAULT, told) if kept else (Fate.NOT_POSSIBLE, told)
    compute = draft.get("precision.compute")
    if value == "FLOAT_16" or _BASES.get(value) == compute or (value == "BFLOAT_16" and compute == "float32"):
        return Fate.DEFAULT, f"the frozen weights have the dtype of products, {compute}"
    if value in ("GGUF", "GGUF_A8_FLOAT", "GGUF_A8_INT"):
        if str(draft.get("model.weights")).endswith(".gguf"):
            return Fate.TAKEN, draft.set("lora.base", "gguf")
        return Fate.TO_FILL_IN, 'name the .gguf file as model.weights, and set lora.base = "gguf"'
    return rules.by_name("lora.base", _BASES, "int8", "this storage is not supported")(value, draft)


def _rate_of_part(value: Any, draft: ImportDraft) -> Outcome:
    if value is None:
        return Fate.DEFAULT, "learning_rate decides"
    return _set_rate(value, draft)


def _learning_rate(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get(f"{model_of(draft).part}.learning_rate") is not None:
        return Fate.NO_MEANING, f"{model_of(draft).part}.learning_rate decides"
    return _set_rate(value, draft)


def _set_rate(value: Any, draft: ImportDraft) -> Outcome:
    rate = values.number(value, 1e-300) * _rate_scale(draft) ** 0.5
    if (
        draft.get("train.optimizer") == "adafactor"
        and optimizers.setting(draft.settings, "scale_parameter") is not True
    ):
        remark = draft.set("train.learning_rate", float(f"{rate / _SIZE_OF_WEIGHTS:.3g}"))
        return Fate.NOT_POSSIBLE, (
            f"{remark}: here it is a share of the size of the weights, which is about {_SIZE_OF_WEIGHTS} in these networks"
        )
    if draft.get("train.optimizer") == "prodigy":
        taken = max(rate, 0.01)
        remark = draft.set("train.learning_rate", taken)
        return (Fate.TAKEN, remark) if taken == rate else (Fate.NOT_POSSIBLE, f"the least of prodigy: {remark}")
    return Fate.TAKEN, draft.set("train.learning_rate", rate)


def _rate_scale(draft: ImportDraft) -> int:
    batch, steps = (draft.settings.get(key, 1) for key in ("batch_size", "gradient_accumulation_steps"))
    scale = 1
    kind = str(draft.settings.get("learning_rate_scaler", "NONE"))
    if kind in ("BATCH", "GLOBAL_BATCH", "BOTH", "GLOBAL_BOTH"):
        scale *= values.whole(batch)
    if kind in ("GRADIENT_ACCUMULATION", "BOTH", "GLOBAL_BOTH"):
        scale *= values.whole(steps)
    return scale


def _scaler(value: Any, draft: ImportDraft) -> Outcome:
    if value == "NONE":
        return Fate.DEFAULT, "off"
    return Fate.TAKEN, f"train.learning_rate is multiplied by the root of {_rate_scale(draft)}, as for one process"


def _warmup(value: Any, draft: ImportDraft) -> Outcome:
    steps = values.number(value)
    if steps > 1:
        taken = int(steps / values.whole(draft.settings.get("gradient_accumulation_steps", 1)))
        return Fate.TAKEN, draft.set("train.warmup_steps", taken)
    if steps <= 0:
        return Fate.TAKEN, draft.set("train.warmup_steps", 0)
    return (
        Fate.TO_FILL_IN,
        f"a share of all steps: set train.warmup_steps to {steps:g} of the steps that `reelworks plan` tells",
    )


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    if value == "CONSTANT" or draft.get("train.optimizer") == "schedulefree":
        return Fate.DEFAULT, "the rate is constant after warm-up"
    nearest = {"LINEAR": "linear", "COSINE": "cosine", "REX": "linear"}.get(str(value))
    if nearest is None and not str(value).startswith("COSINE"):
        return (
            Fate.NOT_POSSIBLE,
            "the rate is constant after warm-up; set train.learning_rate_schedule for linear or cosine",
        )
    factor = values.number(draft.settings.get("learning_rate_min_factor", 0.0), 0, 1)
    final = f", train.final_learning_rate to {factor:g} of the rate" if factor else ""
    return (
        Fate.TO_FILL_IN if value in ("LINEAR", "COSINE") else Fate.NOT_POSSIBLE,
        f'the nearest falls over all epochs: set train.learning_rate_schedule = "{nearest or "cosine"}"{final}, and '
        "train.max_steps to the steps of an epoch (`reelworks plan`) times the epochs; until then the rate is constant",
    )


def _ema(value: Any, draft: ImportDraft) -> Outcome:
    on = value in ("GPU", "CPU")
    draft.set("exports.weights", "ema" if on else "model")
    if draft.get("train.optimizer") == "schedulefree":
        return Fate.NO_MEANING, "schedulefree has an average of its own"
    if not on:
        return Fate.TAKEN, draft.set("train.ema_decay", 0.0)
    decay = values.number(draft.settings.get("ema_decay", 0.999), 0, 1 - 1e-9)
    # There, only every n-th step moves the average; here, each does, by as much in n steps.
    every = values.whole(draft.settings.get("ema_update_step_interval", 5))
    remark = draft.set("train.ema_decay", round(decay ** (1 / every), 8))
    return Fate.TAKEN, f"{remark}, {draft.set('train.ema_device', 'cpu')}" if value == "CPU" else remark


def _peft(value: Any, draft: ImportDraft) -> Outcome:
    if not trains_adapter(draft):
        return Fate.NO_MEANING, "all weights are trained"
    return rules.by_name("lora.type", _TYPES, "lora", "there is no such adapter")(value, draft)


def _adapter(target: str, kinds: tuple[str, ...], rule: Rule) -> Rule:
    """Use a rule for adapters of some types."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        kind = draft.get("lora.type", "lora")
        if not trains_adapter(draft) or kind not in kinds:
            return Fate.NO_MEANING, f"it belongs to {' and '.join(kinds)}"
        return rule(value, draft)

    return handle


def _dropout(value: Any, draft: ImportDraft) -> Outcome:
    if not value or not trains_adapter(draft):
        return Fate.DEFAULT, "off"
    if draft.get("lora.type") == "oft":
        return Fate.NOT_POSSIBLE, "rotations are not dropped"
    return Fate.TAKEN, draft.set("lora.dropout", values.range_of(0, 0.99, values.number(value, 0, 1)))


def _full_matrix(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    return Fate.TAKEN, f"{draft.set('lora.rank', _MOST_RANK)}, with which the factors are full matrices"


def _lokr_rank(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("lokr_full_matrix") is True:
        return Fate.NO_MEANING, "lokr_full_matrix decides"
    return values.count("lora.rank")(value, draft)


def _factor(value: Any, draft: ImportDraft) -> Outcome:
    if value == -1:
        return Fate.DEFAULT, "as even as possible"
    return values.count("lora.decompose_factor")(value, draft)


def _decompose(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    remark = draft.set("lora.dora", True)
    if draft.settings.get("lora_decompose_output_axis") is True:
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"there, magnitudes are those of columns, and here of rows: {remark}"


def _filter(value: Any, draft: ImportDraft) -> Outcome:
    preset = str(draft.settings.get("layer_filter_preset", "full"))
    patterns = model_of(draft).filters.get(preset, ("",)) if value is None else str(value).split(",")
    if not trains_adapter(draft):
        if all(pattern == "" for pattern in patterns):
            return Fate.DEFAULT, "all weights are trained"
        return Fate.NOT_POSSIBLE, "all weights are trained, and not some layers: train a LoRA, which has lora.targets"
    regex = draft.settings.get("layer_filter_regex") is True or (
        value is None and any("(?" in each for each in patterns)
    )
    try:
        found = layers.targets(draft.get("model.name"), patterns, regex)
    except (LookupError, ValueError, re.error):
        return Fate.NOT_POSSIBLE, f"no linear layer matches; the nearest: {draft.set('lora.targets', 'blocks')}"
    remark = draft.set("lora.targets", found.names)
    if draft.get("model.name") == "sdxl" and patterns in (("",), [""]):
        return Fate.NOT_POSSIBLE, f"{remark}; convolutions have no update here"
    if found.by_number:
        return Fate.NOT_POSSIBLE, f"{remark}, in all blocks: to choose some, write complete names"
    if found.others:
        return (
            Fate.NOT_POSSIBLE,
            f"{remark}, which means {len(found.others)} other kinds of layers too: {found.others[0]}, …",
        )
    return Fate.TAKEN, remark


def _filter_preset(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.NO_MEANING, "layer_filter decides" if draft.settings.get("layer_filter") is not None else "lora.targets"


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    known = optimizers.OPTIMIZERS.get(str(value), optimizers.UNKNOWN)
    remark = draft.set("train.optimizer", known.name)
    return (Fate.TAKEN, remark) if known.exact else (Fate.NOT_POSSIBLE, f"the nearest: {remark}")


def _betas(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("train.optimizer") == "adafactor":
        return Fate.NO_MEANING, "adafactor has none here"
    betas = [values.number(optimizers.setting(draft.settings, key), 0, 1 - 1e-9) for key in ("beta1", "beta2")]
    return Fate.TAKEN, draft.set("train.betas", betas)


def _eps(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("train.optimizer") in ("adafactor", "came"):
        return Fate.NO_MEANING, f"{draft.get('train.optimizer')} has its own here"
    found = optimizers.setting(draft.settings, "eps")
    return Fate.TAKEN, draft.set("train.eps", values.number(found or 1e-8, 1e-300))


def _decay(value: Any, draft: ImportDraft) -> Outcome:
    decay = values.number(optimizers.setting(draft.settings, "weight_decay"), 0)
    remark = draft.set("train.weight_decay", decay)
    if decay and optimizers.name_of(draft.settings) in ("ADAM", "ADAM_8BIT"):
        return Fate.NOT_POSSIBLE, f"{remark}: it is not part of the gradient here"
    return Fate.TAKEN, remark


def _fused(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    return Fate.NOT_POSSIBLE, "gradients are kept until the step: for less memory set parallel.offload = true"


def _remembered(value: Any, draft: ImportDraft) -> Outcome:
    if draft.key.startswith(f"optimizer_defaults.{optimizers.name_of(draft.settings)}."):
        return Fate.NO_MEANING, "what optimizer.* leaves out"
    return Fate.NO_MEANING, "of an optimizer that is not used"


def _distribution(value: Any, draft: ImportDraft) -> Outcome:
    if not is_rectified_flow(draft):
        same = value == "UNIFORM"
        return (Fate.DEFAULT, "uniform") if same else (Fate.NOT_POSSIBLE, "timesteps of this model are drawn uniformly")
    weight = values.number(draft.settings.get("noising_weight", 0.0))
    bias = values.number(draft.settings.get("noising_bias", 0.0))
    density = _DENSITIES.get(str(value))
    if density is None:
        raise ValueError("no such distribution")
    return density(weight, bias, draft)


def _uniform(weight: float, bias: float, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("objective.timestep_sampling", "uniform")


def _logit_normal(weight: float, bias: float, draft: ImportDraft) -> Outcome:
    remark = draft.set("objective.timestep_sampling", "logit-normal")
    draft.set("objective.logit_mean", values.range_of(-10, 10, bias))
    return Fate.TAKEN, f"{remark}, {draft.set('objective.logit_std', values.range_of(0.01, 10, weight + 1))}"


def _heavy_tail(weight: float, bias: float, draft: ImportDraft) -> Outcome:
    remark = draft.set("objective.timestep_sampling", "mode")
    taken = values.range_of(-1, 1.75, weight)
    remark += f", {draft.set('objective.mode_scale', taken)}"
    return (Fate.TAKEN, remark) if taken == weight else (Fate.NOT_POSSIBLE, f"the nearest: {remark}")


def _cos_map(weight: float, bias: float, draft: ImportDraft) -> Outcome:
    remark = draft.set("objective.timestep_sampling", "uniform")
    draft.set("objective.loss_weighting", "cosmap")
    return Fate.TAKEN, f'{remark}, objective.loss_weighting = "cosmap": weights in place of a density'


def _sigmoid(weight: float, bias: float, draft: ImportDraft) -> Outcome:
    remark = draft.set("objective.timestep_sampling", "uniform")
    return (
        (Fate.TAKEN, remark) if not weight else (Fate.NOT_POSSIBLE, f"there is no such density; the nearest: {remark}")
    )


def _parabola(weight: float, bias: float, draft: ImportDraft) -> Outcome:
    """Take the beta distribution of the same spread as 2 − weight · (t − 0.5)², which is beta(2, 2) for 8."""
    if bias or not 0 < weight <= 8:
        return Fate.NOT_POSSIBLE, f"there is no such density; the nearest: {_logit_normal(0.0, 0.0, draft)[1]}"
    spread = (2 / 12 - weight / 80) / (2 - weight / 12)
    shape = round((1 / (4 * spread) - 1) / 2, 3)
    remark = draft.set("objective.timestep_sampling", "beta")
    for key in ("beta_alpha", "beta_beta"):
        remark += f", {draft.set(f'objective.{key}', shape)}"
    return Fate.TAKEN if weight == 8 else Fate.NOT_POSSIBLE, f"{remark}, of the same spread"


def _beta(weight: float, bias: float, draft: ImportDraft) -> Outcome:
    remark, exact = draft.set("objective.timestep_sampling", "beta"), True
    for key, value in (("beta_alpha", weight), ("beta_beta", bias)):
        taken = values.range_of(0.5, 50, value)
        exact = exact and taken == value
        remark += f", {draft.set(f'objective.{key}', taken)}"
    return (Fate.TAKEN, remark) if exact else (Fate.NOT_POSSIBLE, f"the nearest: {remark}")


_DENSITIES: dict[str, Callable[[float, float, ImportDraft], Outcome]] = {
    "UNIFORM": _uniform,
    "LOGIT_NORMAL": _logit_normal,
    "HEAVY_TAIL": _heavy_tail,
    "COS_MAP": _cos_map,
    "SIGMOID": _sigmoid,
    "INVERTED_PARABOLA": _parabola,
    "BETA": _beta,
}


def _shift(value: Any, draft: ImportDraft) -> Outcome:
    if not is_rectified_flow(draft):
        return Fate.NO_MEANING, "this model has no shift"
    if draft.settings.get("dynamic_timestep_shifting") is True and model_of(draft).line is not None:
        return Fate.NO_MEANING, "dynamic_timestep_shifting decides"
    return Fate.TAKEN, draft.set("objective.timestep_shift", values.number(value, 1e-3))


def _dynamic(value: Any, draft: ImportDraft) -> Outcome:
    """Take the shift of the mean area: it depends on the area alone, which is the same for all aspect ratios."""
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    if not is_rectified_flow(draft) or model_of(draft).line is None:
        return Fate.NO_MEANING, "this model has no shift by size"
    sides = sides_of(str(draft.settings.get("resolution", "512")))
    shift = model_of(draft).shift(math.sqrt(sum(height * width for height, width in sides) / len(sides)))
    remark = draft.set("objective.timestep_shift", round(shift or 1.0, 3))
    if len(sides) == 1:
        return Fate.TAKEN, f"{remark}, that of this size"
    return Fate.NOT_POSSIBLE, f"there is one shift for all sizes: {remark}, that of the mean area"


def sides_of(resolution: str) -> list[tuple[int, int]]:
    """Return the heights and widths of a setting of resolutions: one size, or the sides of squares."""
    if "x" in resolution and "," not in resolution:
        width, height = resolution.strip().split("x")
        return [(values.whole(height, 1, 10**5), values.whole(width, 1, 10**5))]
    return [(side, side) for side in sorted({values.whole(each, 1, 10**5) for each in resolution.split(",")})]


def _strength(value: Any, draft: ImportDraft) -> Outcome:
    low, high = (
        values.number(draft.settings.get(f"{key}_noising_strength", at), 0, 1)
        for key, at in (("min", 0.0), ("max", 1.0))
    )
    if (low, high) == (0, 1):
        return Fate.DEFAULT, "all timesteps"
    if not is_rectified_flow(draft):
        return Fate.NOT_POSSIBLE, "all timesteps of this model are trained"
    remark = draft.set("objective.timestep_range", [round(1000 * low, 6), round(1000 * high, 6)])
    if draft.settings.get("timestep_distribution", "UNIFORM") == "UNIFORM":
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"{remark}: there, the whole density is squeezed into it; here, it is cut"


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    strengths = {key: values.number(draft.settings.get(f"{key}_strength", at)) for key, at in _STRENGTHS.items()}
    used = {key for key, strength in strengths.items() if strength}
    if used == {"mse"}:
        return Fate.DEFAULT, "the loss is the squared error"
    name = "huber" if "huber" in used else "smooth-l1" if used & {"mae", "log_cosh"} else "mse"
    remark = draft.set("objective.loss", name)
    if name == "huber":
        delta = values.number(draft.settings.get("huber_delta", 1.0), 1e-6, 10)
        remark += f", {draft.set('objective.huber_delta', delta)}"
    if used == {"huber"}:
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"one kind of error is possible; the nearest: {remark}"


_STRENGTHS = {"mse": 1.0, "mae": 0.0, "log_cosh": 0.0, "huber": 0.0}


def _weighting(value: Any, draft: ImportDraft) -> Outcome:
    if value == "CONSTANT":
        return Fate.DEFAULT, "all timesteps count alike"
    names = {"MIN_SNR_GAMMA": "min-snr", "DEBIASED_ESTIMATION": "debiased"}
    if value not in names:
        return Fate.NOT_POSSIBLE, "there is no such weight; see objective.loss_weighting"
    remark = draft.set("objective.loss_weighting", names[value])
    if value == "MIN_SNR_GAMMA":
        strength = values.number(draft.settings.get("loss_weight_strength", 5.0), 1e-6)
        remark += f", {draft.set('objective.snr_gamma', strength)}"
    return Fate.TAKEN, remark


def _v_prediction(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if is_rectified_flow(draft):
        return Fate.NO_MEANING, "this model predicts velocities"
    return Fate.TAKEN, draft.set("objective.name", "v-prediction")


def _caching(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("encode.store", values.flag(value))


def _offload(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if _BASES.get(draft.settings.get(f"{model_of(draft).part}.weight_dtype")) in ("float8", "int8", "nf4"):
        return Fate.NOT_POSSIBLE, (
            'quantised weights stay on the GPU; for less memory set lora.base = "bfloat16" and parallel.offload = true, '
            "which keeps all blocks in CPU memory"
        )
    return Fate.TAKEN, f"{draft.set('parallel.offload', True)}, which keeps all blocks in CPU memory"


def _text_trained(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    return Fate.NOT_POSSIBLE, "text encoders are not trained"


def _caption_dropout(value: Any, draft: ImportDraft) -> Outcome:
    """Take the share of captions that are dropped for the first encoder; here they are dropped for all."""
    share = values.number(value, 0, 1)
    if draft.key.partition(".")[0] == "text_encoder":
        return Fate.TAKEN, draft.set("objective.caption_dropout", share)
    same = share == values.number(draft.settings.get("text_encoder.dropout_probability", 0.0))
    return (
        (Fate.DEFAULT, "for all text encoders")
        if same
        else (
            Fate.NOT_POSSIBLE,
            "captions are dropped for all text encoders together: text_encoder.dropout_probability decides",
        )
    )


def _guidance(value: Any, draft: ImportDraft) -> Outcome:
    embedded = datasets.conditioning_of(draft).guidance == "embedded"
    if not embedded:
        return Fate.NO_MEANING, "guidance is no input of this model"
    return rules.only((1, 1.0), "as here", "it is trained at a guidance of 1")(value, draft)


def _every(draft: ImportDraft, name: str) -> tuple[float, str]:
    default = {"backup_after": 30, "save_every": 0, "sample_after": 10}[name]
    unit = {"backup_after": "MINUTE", "save_every": "NEVER", "sample_after": "MINUTE"}[name]
    return values.number(draft.settings.get(name, default), 0), str(draft.settings.get(f"{name}_unit", unit))


def _interval(name: str) -> Rule:
    """Set when checkpoints are saved; backups and saves are the same here."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        every, unit = _every(draft, name)
        if unit == "NEVER" or not every:
            return Fate.DEFAULT, "only at the end"
        steps = values.whole(draft.settings.get("gradient_accumulation_steps", 1))
        if unit == "STEP":
            return Fate.TAKEN, draft.set("checkpoints.every_steps", max(int(every) // steps, 1))
        if unit in _MINUTES:
            return Fate.TAKEN, draft.set("checkpoints.every_minutes", round(every * _MINUTES[unit], 4))
        if unit == "ALWAYS":
            return Fate.TAKEN, draft.set("checkpoints.every_steps", 1)
        remark = draft.set("checkpoints.at_epoch_end", True)
        return (Fate.TAKEN, remark) if every == 1 else (Fate.NOT_POSSIBLE, f"after each epoch: {remark}")

    return handle


def _previews(value: Any, draft: ImportDraft) -> Outcome:
    every, unit = _every(draft, "sample_after")
    steps = values.whole(draft.settings.get("gradient_accumulation_steps", 1))
    if unit in ("STEP", "ALWAYS") and every:
        taken = max(int(every) // steps, 1) if unit == "STEP" else 1
        return Fate.TAKEN, draft.set("samples.every_steps", taken)
    if unit == "NEVER" or not every:
        return Fate.DEFAULT, "only at the end"
    return Fate.NOT_POSSIBLE, "previews are made every so many steps: set samples.every_steps; until then, at the end"


def _rolling(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.NOT_POSSIBLE, "not all checkpoints stay: set checkpoints.keep_last, or keep_every"
    kept = values.whole(draft.settings.get("rolling_backup_count", 3))
    return Fate.TAKEN, draft.set("checkpoints.keep_last", kept)


def _format(value: Any, draft: ImportDraft) -> Outcome:
    if not trains_adapter(draft) or draft.settings.get("peft_type", "LORA") != "LORA":
        return Fate.NO_MEANING, "exports.formats is for LoRAs; others are written in the layout of diffusers"
    known = registry.release_of(draft.get("model.name")).formats
    wanted = _FORMATS.get(str(value), "diffusers")
    if wanted in known:
        return Fate.TAKEN, draft.set("exports.formats", [wanted])
    return Fate.NOT_POSSIBLE, f"the nearest: {draft.set('exports.formats', [known[0]])}"


def _output(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("output", f"{values.text(value).rstrip('/')}/{draft.request.path.stem}")


def _batch_size(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("buckets.batch_size", values.whole(value, 1, 65536))


def _gpus(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    return Fate.NO_MEANING, "start as many processes with torchrun"


def _bucketed(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, "buckets.aspect_ratios"


def _resolution(value: Any, draft: ImportDraft) -> Outcome:
    sides_of(str(value))
    return Fate.TAKEN, "[[bucket]]"


def _masks(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    return Fate.TO_FILL_IN, (
        "move each NAME-masklabel.png to a folder of masks as NAME.png, and name that folder as dataset.loss_mask"
    )


def _mask_setting(as_here: tuple[Any, ...], told: str) -> Rule:
    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if draft.settings.get("masked_training") is not True:
            return Fate.NO_MEANING, "masks are not used"
        return rules.only(as_here, "as here", told)(value, draft)

    return handle


def _embedding(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.NO_MEANING, "no embedding is trained"


_EMBEDDINGS = rules.impossible("embeddings are not trained: write words into the captions")
_PART_FIELDS = (
    *("model_name", "include", "train", "stop_training_after", "stop_training_after_unit", "learning_rate"),
    *("weight_dtype", "dropout_probability", "train_embedding", "attention_mask", "guidance_scale"),
    *("gradient_checkpointing", "offload_fraction", "activation_offloading"),
)
_NO_PART = "it is no part of this model"
_STOP = rules.impossible("the network is trained to the end", unless=(None, 0, "NEVER"))
_OF_DENOISER: dict[str, Rule] = {
    "model_name": _base_model,
    "include": rules.without_meaning("the network is always there"),
    "train": rules.only((True,), "it is trained", "the network is trained"),
    "stop_training_after": values.together("stop_training_after_unit"),
    "stop_training_after_unit": _STOP,
    "learning_rate": _rate_of_part,
    "weight_dtype": _weight_dtype,
    "dropout_probability": rules.without_meaning("it is for text encoders"),
    "train_embedding": _embedding,
    "attention_mask": rules.without_meaning("captions are masked as the release was trained"),
    "guidance_scale": _guidance,
    "gradient_checkpointing": values.switch("model.gradient_checkpointing"),
    "offload_fraction": _offload,
    "activation_offloading": rules.impossible("activations stay on the GPU: set model.gradient_checkpointing = true"),
}
_OF_TEXT = {"train": _text_trained, "dropout_probability": _caption_dropout, "model_name": _OF_RELEASE}


def _part_rules() -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for part in PARTS:
        for field in _PART_FIELDS:
            found[f"{part}.{field}"] = _of_part(part, field)
        found[f"{part}.__version"] = rules.without_meaning("the version of the table")
    return found


def _of_part(part: str, field: str) -> Rule:
    def handle(value: Any, draft: ImportDraft) -> Outcome:
        model = model_of(draft)
        if part == model.part:
            return _OF_DENOISER[field](value, draft)
        if part in model.texts and field in _OF_TEXT:
            return _OF_TEXT[field](value, draft)
        return (_OF_RELEASE if part in (*model.texts, "vae") else rules.without_meaning(_NO_PART))(value, draft)

    return handle


_EMPTY = rules.without_meaning("it is empty")
_LOW_RANK = ("lora", "loha")
_SETTINGS_OF_OPTIMIZERS = rules.impossible(
    "the optimizer has no such setting here", unless=(None, False, 0, "", [], {}, float("inf"), "inf")
)
RULES: dict[str, Rule] = {
    "__version": rules.without_meaning("the version of the file"),
    "training_method": _method,
    "model_type": _model_type,
    "base_model_name": _base_model,
    **dict.fromkeys(("debug_mode", "debug_dir", "continue_last_backup", "prevent_overwrites"), _WINDOW),
    "include_train_config": rules.without_meaning("exports name the recipe's base in their header"),
    "workspace_dir": _output,
    **dict.fromkeys(
        ("cache_dir", "clear_cache_before_training"), rules.without_meaning("stored latents are never stale")
    ),
    **dict.fromkeys(
        ("huggingface_cache_dir", "offline_mode"), rules.without_meaning("HF_HOME and HF_HUB_OFFLINE tell")
    ),
    **dict.fromkeys(
        ("tensorboard", "tensorboard_expose", "tensorboard_always_on", "tensorboard_port", "samples_to_tensorboard"),
        rules.without_meaning("TensorBoard is always written"),
    ),
    "validation": rules.impossible("clips are held out of the datasets: set validation.split"),
    **dict.fromkeys(
        ("validate_after", "validate_after_unit"),
        rules.without_meaning("validation.every_steps is for clips that are held out"),
    ),
    "multi_gpu": _gpus,
    **dict.fromkeys(
        (
            *("device_indexes", "gradient_reduce_precision", "fused_gradient_reduce", "async_gradient_reduce"),
            *("async_gradient_reduce_buffer", "train_device", "temp_device", "dataloader_threads"),
            *(
                "attention_mechanism",
                "enable_autocast_cache",
                "async_offloading",
                "weight_dtype",
                "fallback_train_dtype",
            ),
        ),
        _SPEED,
    ),
    "only_cache": rules.without_meaning("`reelworks encode` stores latents and embeddings alone"),
    "output_dtype": rules.by_name("exports.dtype", _EXPORTED, "bfloat16", "exports have no such dtype"),
    "output_model_format": _format,
    "output_model_destination": rules.without_meaning("exports are in the run folder"),
    "force_circular_padding": rules.impossible("pictures that join at their edges are not possible"),
    "compile": values.switch("train.compile"),
    **dict.fromkeys(("concept_file_name", "sample_definition_file_name"), rules.without_meaning("it is read too")),
    **dict.fromkeys(("concepts", "samples"), rules.without_meaning("there are none in it")),
    "aspect_ratio_bucketing": _bucketed,
    "latent_caching": _caching,
    "learning_rate_scheduler": _schedule,
    "custom_learning_rate_scheduler": rules.impossible("set train.learning_rate_schedule"),
    **dict.fromkeys(("scheduler_params", "scheduler_params.*"), rules.impossible("set train.learning_rate_schedule")),
    "learning_rate": _learning_rate,
    "learning_rate_warmup_steps": _warmup,
    "learning_rate_cycles": rules.only((1, 1.0), "one", "the rate falls once"),
    "learning_rate_min_factor": values.together("learning_rate_scheduler"),
    "learning_rate_scaler": _scaler,
    "epochs": values.passes,
    "batch_size": _batch_size,
    "gradient_accumulation_steps": values.count("train.gradient_accumulation_steps"),
    "ema": _ema,
    **dict.fromkeys(("ema_decay", "ema_update_step_interval"), values.together("ema")),
    "train_dtype": _dtype,
    "resolution": _resolution,
    "frames": rules.without_meaning("this model takes pictures"),
    **dict.fromkeys(("mse_strength", "mae_strength", "log_cosh_strength", "huber_strength"), _loss),
    "huber_delta": values.together("huber_strength"),
    "vb_loss_strength": rules.without_meaning("it belongs to other models"),
    "loss_weight_fn": _weighting,
    "loss_weight_strength": values.together("loss_weight_fn"),
    "dropout_probability": _dropout,
    "loss_scaler": rules.impossible("the loss is a mean: multiply train.learning_rate instead", unless=("NONE",)),
    "clip_grad_norm": values.amount("train.max_grad_norm", none=NONE),
    "layer_filter": _filter,
    "layer_filter_preset": _filter_preset,
    "layer_filter_regex": values.together("layer_filter"),
    "offset_noise_weight": rules.impossible("noise has no offset"),
    "generalized_offset_noise": rules.impossible("noise has no offset"),
    "perturbation_noise_weight": rules.impossible("noise is not perturbed"),
    "rescale_noise_scheduler_to_zero_terminal_snr": rules.impossible(
        "the noise of SDXL's last step is that of its release"
    ),
    "force_v_prediction": _v_prediction,
    "force_epsilon_prediction": rules.only((False,), "as the release", "the release decides: objective.name"),
    "timestep_distribution": _distribution,
    **dict.fromkeys(("min_noising_strength", "max_noising_strength"), _strength),
    **dict.fromkeys(("noising_weight", "noising_bias"), values.together("timestep_distribution")),
    "timestep_shift": _shift,
    "dynamic_timestep_shifting": _dynamic,
    **_part_rules(),
    "quantization.*": rules.without_meaning("lora.base is for the linear layers of all blocks"),
    **{
        f"text_encoder{n}_layer_skip": rules.impossible("captions are encoded as the release does")
        for n in ("", "_2", "_3", "_4")
    },
    **{f"text_encoder{n}_sequence_length": _OF_RELEASE for n in ("", "_2")},
    "masked_training": _masks,
    "unmasked_probability": _mask_setting((0, 0.0), "masks are always used"),
    "unmasked_weight": _mask_setting((0, 0.0), "black areas do not count: paint them grey"),
    "normalize_masked_area_loss": _mask_setting((False,), "the loss is a mean over all areas"),
    "masked_prior_preservation_weight": _mask_setting((0, 0.0), "use a dataset with prior_prediction"),
    "custom_conditioning_image": rules.impossible(
        "move each NAME-condlabel.png to a folder, and name it as dataset.control"
    ),
    **dict.fromkeys(("embedding_learning_rate", "preserve_embedding_norm", "embedding_weight_dtype"), _embedding),
    "embedding.*": _embedding,
    **dict.fromkeys(("additional_embeddings", "additional_embeddings.*"), _EMBEDDINGS),
    "bundle_additional_embeddings": _embedding,
    "peft_type": _peft,
    "lora_model_name": values.place("lora.weights"),
    "lora_rank": _adapter("lora.rank", _LOW_RANK, values.count("lora.rank")),
    "lora_alpha": _adapter("lora.alpha", (*_LOW_RANK, "lokr"), values.amount("lora.alpha", 1e-6)),
    "lora_decompose": _adapter("lora.dora", ("lora",), _decompose),
    "lora_decompose_norm_epsilon": rules.without_meaning("norms have no epsilon"),
    "lora_decompose_output_axis": values.together("lora_decompose"),
    "lora_weight_dtype": rules.only(("FLOAT_32",), "as here", "adapters are trained in float32"),
    "oft_block_size": _adapter("lora.block_size", ("oft",), values.count("lora.block_size", 2)),
    "oft_block_share": _adapter("", ("oft",), rules.impossible("each block has a rotation of its own")),
    "oft_scaled": _adapter("", ("oft",), rules.impossible("rotations have no scale")),
    "lokr_dim": _adapter("lora.rank", ("lokr",), _lokr_rank),
    "lokr_decompose_both": _adapter("lora.decompose_both", ("lokr",), values.switch("lora.decompose_both")),
    "lokr_decompose_factor": _adapter("lora.decompose_factor", ("lokr",), _factor),
    "lokr_use_tucker": rules.without_meaning("it is for convolutions"),
    "lokr_weight_decompose": _adapter("", ("lokr",), rules.impossible("lora.dora is for the type lora")),
    "lokr_dora_on_output": values.together("lokr_weight_decompose"),
    "lokr_full_matrix": _adapter("lora.rank", ("lokr",), _full_matrix),
    "lokr_vec_trick": _SPEED,
    "optimizer.__version": rules.without_meaning("the version of the table"),
    "optimizer.optimizer": _optimizer,
    **dict.fromkeys(("optimizer.beta1", "optimizer.beta2"), _betas),
    "optimizer.eps": _eps,
    "optimizer.weight_decay": _decay,
    "optimizer.fused_back_pass": _fused,
    **{
        f"optimizer.{key}": _SPEED
        for key in (
            *("foreach", "fused", "capturable", "compile", "use_triton", "is_paged", "optim_bits", "min_8bit_size"),
            *("quant_block_size", "percentile_clipping", "block_wise", "log_every", "differentiable", "slice_p"),
            *("stochastic_rounding", "fsdp_in_use", "factored_fp32", "split_groups", "split_groups_mean"),
        )
    },
    **{
        f"optimizer.{key}": rules.without_meaning("it belongs to optimizers that are not here, or has its default")
        for key in (
            *("muon_adam_config", "muon_adam_config.*", "muon_hidden_layers", "muon_adam_regex", "muon_adam_lr"),
            *("muon_te1_adam_lr", "muon_te2_adam_lr", "MuonWithAuxAdam", "decouple", "d_limiter", "use_schedulefree"),
            *("use_stableadamw", "factored", "weight_decay_by_lr", "bias_correction", "adam_w_mode", "rms_rescaling"),
            *("beta3", "beta3_ema", "alpha", "alpha_grad", "d0", "growth_rate", "decay_rate", "clip_threshold"),
            *(
                "eps2",
                "momentum",
                "dampening",
                "lr_decay",
                "initial_accumulator_value",
                "initial_accumulator",
                "k",
                "xi",
            ),
            *("max_unorm", "r", "weight_lr_power", "n_sma_threshold", "ns_steps", "beta2_normuon", "ortho_rank"),
            *("beta1_warmup", "min_beta1", "schedulefree_c", "prodigy_steps", "nesterov", "relative_step"),
            *("scale_parameter", "warmup_init"),
        )
    },
    "optimizer.d_coef": rules.impossible(
        "the estimate is not scaled: multiply train.learning_rate", unless=(None, 1, 1.0)
    ),
    "optimizer.*": _SETTINGS_OF_OPTIMIZERS,
    **dict.fromkeys(("optimizer_defaults", "optimizer_defaults.*"), _remembered),
    "sample_after": _previews,
    "sample_after_unit": values.together("sample_after"),
    **dict.fromkeys(
        ("sample_skip_first", "sample_image_format", "sample_video_format", "sample_audio_format"),
        rules.without_meaning("previews are files of the run folder"),
    ),
    "non_ema_sampling": rules.without_meaning("previews are made with the averaged weights"),
    "backup_after": _interval("backup_after"),
    "backup_after_unit": values.together("backup_after"),
    "rolling_backup": _rolling,
    "rolling_backup_count": values.together("rolling_backup"),
    "backup_before_save": rules.without_meaning("a run saves at its end"),
    "save_every": _interval("save_every"),
    "save_every_unit": values.together("save_every"),
    "save_skip_first": rules.impossible("the first are written too", unless=(0, None)),
    "save_filename_prefix": rules.without_meaning("exports are named by their step"),
    **dict.fromkeys((*PARTS, "optimizer", "embedding", "quantization", "secrets", "cloud"), _EMPTY),
    **dict.fromkeys(("secrets.*", "cloud.*"), rules.without_meaning("`reelworks train` runs where it is started")),
}
