"""Translations of diffusion-pipe's settings to recipe keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from reelworks.compat import datasets, rules, values
from reelworks.compat.diffusion_pipe import data, models
from reelworks.compat.draft import ImportDraft
from reelworks.compat.rules import Fate, Outcome, Rule
from reelworks.compat.trainer import choose_model, find_model
from reelworks.core.toml_none import WORD as NONE
from reelworks.models import registry

_OF_RELEASE = rules.without_meaning("the autoencoder and text encoder of the release are taken")
_SPEED = rules.without_meaning("it only affects speed and memory")
_NO_VALIDATION = rules.without_meaning("there are no evaluation datasets here")
_DTYPES = {"bfloat16": "bfloat16", "float32": "float32"}
_SAVED = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}
_BASES = {
    "float8": "float8",
    "float8_e4m3fn": "float8",
    "nf4": "nf4",
    "bfloat16": "bfloat16",
    "float32": "float32",
}
# Optimizers by their names in lower case; those of its library pytorch-optimizer, too.
_OPTIMIZERS = {
    **dict.fromkeys(("adamw", "adamw_optimi", "offload"), "adamw"),
    **dict.fromkeys(("adamw8bit", "adamw8bitkahan"), "adamw8bit"),
    **dict.fromkeys(("prodigy",), "prodigy"),
    **dict.fromkeys(("muon",), "muon"),
    **dict.fromkeys(("came",), "came"),
    **dict.fromkeys(("adafactor",), "adafactor"),
    **dict.fromkeys(("schedulefreeadamw",), "schedulefree"),
}
# Defaults of each optimizer there: rate, betas, epsilon and weight decay. None are those of the recipe.
_OF_OPTIMIZERS: Mapping[str, tuple[float | None, list[float] | None, float | None, float]] = {
    "adamw": (1e-3, [0.9, 0.999], 1e-8, 0.01),
    "adamw8bit": (1e-3, [0.9, 0.999], 1e-8, 0.01),
    "adamw_optimi": (None, [0.9, 0.99], 1e-6, 0.0),
    "stableadamw": (None, [0.9, 0.99], 1e-6, 0.0),
    "adamw8bitkahan": (None, [0.9, 0.99], 1e-6, 0.0),
    "offload": (1e-3, [0.9, 0.999], 1e-8, 0.01),
    "prodigy": (1.0, [0.9, 0.999], 1e-8, 0.0),
    "adafactor": (1e-3, None, None, 0.0),
    "came": (2e-4, [0.9, 0.999], None, 0.0),
    "schedulefreeadamw": (2.5e-3, [0.9, 0.999], 1e-8, 0.0),
}
_ADAPTIVE = ("automagic", "genericoptim")
_LACKS = {"adafactor": ("betas", "eps"), "came": ("eps",), "schedulefree": ()}

DEFAULTS: dict[str, Any] = {
    "epochs": None,
    "gradient_clipping": 1.0,
    "warmup_steps": 0,
    "uncond_fraction": 0.0,
    "video_clip_mode": "single_beginning",
    "activation_checkpointing": False,
    "model.timestep_sample_method": "logit_normal",
    "model.sigmoid_scale": 1.0,
    "model.shift": None,
    "optimizer.type": "adamw",
    "optimizer.lr": None,
    "optimizer.betas": None,
    "optimizer.eps": None,
    "optimizer.weight_decay": None,
    "optimizer.gradient_release": False,
    "adapter.dropout": 0.0,
}
RATES_OF_TEXTS = ("model.text_encoder_1_lr", "model.text_encoder_2_lr")
FIRST = (
    *("model.type", "adapter.type", "optimizer.type", "model.dtype", "model.transformer_dtype"),
    *("model.diffusion_model_dtype", "model.timestep_sample_method"),
)


def is_rectified_flow(draft: ImportDraft) -> bool:
    """Whether the model in the draft is trained with rectified flow."""
    return bool(draft.get("objective.name", "rectified-flow") == "rectified-flow")


def trains_adapter(draft: ImportDraft) -> bool:
    """Whether the config trains a LoRA or LoKr, and not all weights."""
    return bool(draft.settings.below("adapter"))


def _model_type(value: Any, draft: ImportDraft) -> Outcome:
    preset = find_model(draft, "model.type", models.preset_names(draft.settings))
    known = models.former_model(draft.settings)
    paths = (draft.settings.get(f"model.{key}") for key in (known.weights if known is not None else ()))
    weights = next((path for path in paths if isinstance(path, str) and path), None)
    if (
        weights is not None
        and known is not None
        and "transformer_path" in known.weights[:1]
        and preset.startswith("wan")
    ):
        # A folder of one of the release's two networks has its names, and not those of diffusers.
        weights = weights if weights.endswith(".safetensors") else None
    remark = choose_model(draft, preset, weights)
    if draft.get("model.experts") is not None:
        names = " ".join(str(draft.settings.get(f"model.{key}", "")) for key in ("transformer_path", "ckpt_path"))
        low = re.search("(?i)low", names) or values.number(draft.settings.get("model.max_t", 1.0)) < 1
        remark += f", {draft.set('model.experts', 'low' if low else 'high')}"
    draft.set("train.ema_decay", 0.0, "there is no average")
    draft.set("train.loss_reduction", "sample", "all clips of a step count alike")
    draft.set("validation.split", 0.0, "no clips are kept back")
    if datasets.conditioning_of(draft).guidance != "embedded":
        draft.set("objective.caption_dropout", 0.0, "captions are not dropped")
    draft.set("encode.store", True, "latents and embeddings are stored ahead of training")
    draft.set("exports.weights", "model", "there is no average")
    draft.set("checkpoints.every_steps", None, "there is no such interval")
    if known is not None and known.fps is not None:
        draft.set(
            "data.fps", "model" if known.fps == registry.PRESETS[preset].fps else known.fps, "clips are brought to it"
        )
    if trains_adapter(draft) and known is not None and draft.settings.get("adapter.type") == "lora":
        draft.set("exports.formats", [known.format], "as its files are written")
    return Fate.TAKEN, remark


def _weights(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("model.weights") == value:
        return Fate.TAKEN, draft.set("model.weights", values.text(value))
    return Fate.NO_MEANING, f"the weights are those of model.weights = {draft.get('model.weights')!r}"


def _dtype(value: Any, draft: ImportDraft) -> Outcome:
    return rules.by_name("precision.compute", _DTYPES, "bfloat16", "products in float16 are not possible")(value, draft)


def _base(value: Any, draft: ImportDraft) -> Outcome:
    if not trains_adapter(draft):
        return Fate.NOT_POSSIBLE, "only the frozen weights of a LoRA can be quantised: train one"
    if value in ("bfloat16", "float32") and value == draft.get("precision.compute"):
        return Fate.DEFAULT, "the dtype of products"
    return rules.by_name("lora.base", _BASES, "float8", "this storage is not supported")(value, draft)


def _timesteps(value: Any, draft: ImportDraft) -> Outcome:
    if not is_rectified_flow(draft):
        return Fate.NO_MEANING, "this model draws one of 1000 steps"
    names = {"logit_normal": "logit-normal", "uniform": "uniform"}
    return rules.by_name("objective.timestep_sampling", names, "logit-normal", "no such density")(value, draft)


def _sigmoid_scale(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("objective.timestep_sampling") != "logit-normal":
        return Fate.NO_MEANING, "timesteps are not logit-normal"
    return values.amount("objective.logit_std", 1e-3, 10)(value, draft)


def _shift(value: Any, draft: ImportDraft) -> Outcome:
    if not is_rectified_flow(draft):
        return Fate.NO_MEANING, "this model draws one of 1000 steps"
    if value:
        return Fate.TAKEN, draft.set("objective.timestep_shift", values.number(value, 1e-3))
    if draft.settings.get("model.flux_shift"):
        return Fate.NO_MEANING, "model.flux_shift decides"
    return Fate.TAKEN, draft.set("objective.timestep_shift", NONE)


def _flux_shift(value: Any, draft: ImportDraft) -> Outcome:
    """Take the shift of the mean area: it depends on the area alone, which is the same for all aspect ratios."""
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    if draft.settings.get("model.shift"):
        return Fate.NO_MEANING, "model.shift decides"
    sides = sorted({side for each in data.directories(draft.settings) for side in each.sides})
    if not sides:
        return (
            Fate.TO_FILL_IN,
            "set objective.timestep_shift to that of the size that is trained: 1.9 at 512, 3.2 at 1024",
        )
    mean = math.sqrt(sum(side * side for side in sides) / len(sides))
    # The line through 0.5 at 256 tokens and 1.15 at 4096 of 16 × 16 pixels (utils/common.py).
    shift = math.exp(0.5 + (1.15 - 0.5) * ((mean / 16) ** 2 - 256) / (4096 - 256))
    remark = draft.set("objective.timestep_shift", round(shift, 3))
    if len(sides) == 1:
        return Fate.TAKEN, f"{remark}, that of {sides[0]:g} × {sides[0]:g} pixels"
    return Fate.NOT_POSSIBLE, f"there is one shift for all sizes: {remark}, that of the mean area"


def _image_shift(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.NOT_POSSIBLE, "there is one shift for pictures and clips, objective.timestep_shift"


def _bound(value: Any, draft: ImportDraft) -> Outcome:
    bounds = [
        values.number(draft.settings.get(f"model.{key}", at), 0, 1) for key, at in (("min_t", 0.0), ("max_t", 1.0))
    ]
    if draft.get("model.experts") is not None:
        if sorted(bounds) in ([0.0, 1.0], _range_of_expert(draft)):
            return Fate.DEFAULT, f"model.experts = {draft.get('model.experts')!r} trains these"
        return Fate.NOT_POSSIBLE, f"model.experts = {draft.get('model.experts')!r} trains {_range_of_expert(draft)}"
    if bounds[0] >= bounds[1]:
        raise ValueError("no range")
    return Fate.TAKEN, draft.set("objective.timestep_range", [round(1000 * bound, 6) for bound in bounds])


def _range_of_expert(draft: ImportDraft) -> list[float]:
    switch = (registry.PRESETS[draft.get("model.name")].switch_timestep or 0.0) / 1000
    return [switch, 1.0] if draft.get("model.experts") == "high" else [0.0, switch]


def _cfg(value: Any, draft: ImportDraft) -> Outcome:
    scale = values.number(value, 0)
    if scale <= 1:
        return Fate.DEFAULT, "off"
    if not trains_adapter(draft):
        return Fate.NOT_POSSIBLE, "targets are guided only for a LoRA"
    remark = draft.set("objective.target_guidance_scale", scale)
    return Fate.TAKEN, f"{remark}; the part without caption is predicted by the base, and not by the LoRA"


def _merged(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    first, *others = value
    if not trains_adapter(draft):
        return Fate.NOT_POSSIBLE, "only a LoRA is trained with another one: merge it into the weights"
    remark = draft.set("lora.training_adapter", values.text(first))
    if others:
        return Fate.NOT_POSSIBLE, f"one adapter is possible: {remark}; merge the others into the weights"
    return Fate.TAKEN, remark


def _first_frame(value: Any, draft: ImportDraft) -> Outcome:
    share = values.number(value, 0, 1)
    if not datasets.conditioning_of(draft).frames:
        return Fate.NOT_POSSIBLE, "this model does not know given frames: choose one that does with --model"
    return Fate.TAKEN, draft.set("objective.mask_ratios.image_head", share)


def _min_snr(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    draft.set("objective.loss_weighting", "min-snr")
    return Fate.TAKEN, draft.set("objective.snr_gamma", values.number(value, 1e-6))


def _debiased(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    return Fate.TAKEN, draft.set("objective.loss_weighting", "debiased")


def _v_prediction(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if is_rectified_flow(draft):
        return Fate.NO_MEANING, "this model predicts velocities"
    return Fate.TAKEN, draft.set("objective.name", "v-prediction")


def _distance(name: str) -> Rule:
    def handle(value: Any, draft: ImportDraft) -> Outcome:
        draft.set("objective.loss", name)
        return Fate.TAKEN, draft.set("objective.huber_delta", values.number(value, 1e-6, 10))

    return handle


def _adapter_type(value: Any, draft: ImportDraft) -> Outcome:
    if value not in ("lora", "lokr"):
        raise ValueError("no such adapter")
    draft.set("lora.targets", "blocks", "all linear layers of the blocks")
    return Fate.TAKEN, draft.set("lora.type", value)


def _rank(value: Any, draft: ImportDraft) -> Outcome:
    """Take the rank; alpha is the rank there, too."""
    return Fate.TAKEN, draft.set("lora.rank", values.whole(value))


def _dropout(value: Any, draft: ImportDraft) -> Outcome:
    if not trains_adapter(draft) or not value:
        return Fate.DEFAULT, "off"
    return Fate.TAKEN, draft.set("lora.dropout", values.range_of(0, 0.99, values.number(value, 0, 1)))


def _factor(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("lora.type") != "lokr" or value == -1:
        return Fate.DEFAULT, "as even as possible"
    return Fate.TAKEN, draft.set("lora.decompose_factor", values.whole(value))


def _existing(value: Any, draft: ImportDraft) -> Outcome:
    """Take the file in a folder of a saved adapter, whose name is always the same."""
    if not value:
        return Fate.DEFAULT, "off"
    path = values.text(value)
    if not path.endswith(".safetensors"):
        kind = PureWindowsPath if "\\" in path else PurePosixPath
        path = str(kind(path) / ("lora" if draft.get("model.name") == "sdxl" else "adapter_model")) + ".safetensors"
    return Fate.TAKEN, draft.set("lora.weights", path)


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    name = values.text(value).lower()
    if name in _OPTIMIZERS:
        remark = draft.set("train.optimizer", _OPTIMIZERS[name])
        if _OPTIMIZERS[name] == "schedulefree":
            draft.remove("train.ema_decay")  # it has an average of its own
        if name == "offload":
            return Fate.NOT_POSSIBLE, f"{remark}; to keep its state in CPU memory, set parallel.offload = true"
        return Fate.TAKEN, remark
    if name == "genericoptim" and any(draft.settings.get(f"optimizer.{key}") for key in ("muon", "adamuon", "normuon")):
        return Fate.NOT_POSSIBLE, f"the nearest: {draft.set('train.optimizer', 'muon')}"
    nearest = draft.set("train.optimizer", "adamw")
    rate = f", and {draft.set('train.learning_rate', 1e-4, 'usual with AdamW')}" if name in _ADAPTIVE else ""
    return Fate.NOT_POSSIBLE, f"there is no {value} here: {nearest}{rate}"


def _of_optimizer(key: str, position: int, set_one: Callable[[Any, ImportDraft], Outcome]) -> Rule:
    """Take a number of the optimizer, or its default there."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        name = str(draft.settings.get("optimizer.type", "adamw")).lower()
        if key == "learning_rate" and draft.get("model.name") == "sdxl" and draft.settings.get("model.unet_lr"):
            return Fate.NO_MEANING, "model.unet_lr is that of the network"
        if key in _LACKS.get(draft.get("train.optimizer"), ()):
            return Fate.NO_MEANING, f"{draft.get('train.optimizer')} has none here"
        if key == "learning_rate" and name in _ADAPTIVE and draft.source_of("train.learning_rate"):
            return Fate.NOT_POSSIBLE, "rates that adapt by themselves are not possible"
        default = _OF_OPTIMIZERS.get(name, (None, None, None, 0.0))[position]
        if value is None and default is None:
            return Fate.DEFAULT, "ours"
        return set_one(default if value is None else value, draft)

    return handle


def _betas(value: Any, draft: ImportDraft) -> Outcome:
    betas = [values.number(beta, 0, 1 - 1e-9) for beta in value][:2]
    if len(betas) < 2:
        raise ValueError("two are needed")
    return Fate.TAKEN, draft.set("train.betas", betas)


def _eps(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("train.eps", values.number(value[0] if isinstance(value, list) else value, 1e-300))


def _constant_rate(value: Any, draft: ImportDraft) -> Outcome:
    draft.set("train.learning_rate_schedule", "constant")
    return Fate.TAKEN, draft.set("train.learning_rate", values.number(value, 1e-300))


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    if value == "constant":
        return Fate.DEFAULT, "the rate is constant after warm-up"
    if value not in ("linear", "cosine"):
        raise ValueError("no such schedule")
    final = ", train.final_learning_rate = 1e-6," if value == "cosine" else ""
    return (
        Fate.TO_FILL_IN,
        f'it falls over all epochs: set train.learning_rate_schedule = "{value}"{final} and train.max_steps to the steps of an '
        f"epoch (`reelworks plan`) times the epochs; until then the rate is constant after warm-up",
    )


def _epochs(value: Any, draft: ImportDraft) -> Outcome:
    if value is None and draft.settings.get("max_steps") is not None:
        return Fate.DEFAULT, "max_steps decides"
    return values.passes(value, draft)


def _clip_mode(value: Any, draft: ImportDraft) -> Outcome:
    known = models.former_model(draft.settings)
    if known is None or known.fps is None:
        return Fate.NO_MEANING, "this model takes pictures"
    names = {"single_beginning": "start"}
    return rules.by_name("data.clip_start", names, "start", "clips from the middle are not possible")(value, draft)


def _swap(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if draft.get("lora.base") not in (None, "bfloat16", "float32"):
        return Fate.NOT_POSSIBLE, (
            f"weights in {draft.get('lora.base')} stay on the GPU; for less memory set lora.base = "
            '"bfloat16" and parallel.offload = true, which keeps all blocks in CPU memory'
        )
    return Fate.TAKEN, f"{draft.set('parallel.offload', True)}, which keeps all blocks in CPU memory"


def _checkpointing(value: Any, draft: ImportDraft) -> Outcome:
    if value == "unsloth":
        remark = draft.set("model.gradient_checkpointing", True)
        return Fate.NOT_POSSIBLE, f"{remark}: inputs of blocks stay on the GPU"
    return Fate.TAKEN, draft.set("model.gradient_checkpointing", values.flag(value))


def _save_epochs(value: Any, draft: ImportDraft) -> Outcome:
    every = values.whole(value)
    remark = draft.set("checkpoints.at_epoch_end", True)
    if every == 1:
        return Fate.TAKEN, remark
    if any(key.startswith("checkpoint_every") for key in draft.settings.values):
        return Fate.NOT_POSSIBLE, f"weights are written with every checkpoint: {remark}"
    return Fate.TAKEN, f"{remark}, {draft.set('exports.every_n_saves', every)}"


def _save_examples(value: Any, draft: ImportDraft) -> Outcome:
    given = draft.settings.get("micro_batch_size_per_gpu", 1)
    size = data.batch_size(given, values.MOST) * values.whole(draft.settings.get("gradient_accumulation_steps", 1))
    steps = max(values.whole(value) // size, 1)
    return Fate.TAKEN, f"{draft.set('checkpoints.every_steps', steps)}, with one process"


def _checkpoint_epochs(value: Any, draft: ImportDraft) -> Outcome:
    every, remark = values.whole(value), draft.set("checkpoints.at_epoch_end", True)
    return (Fate.TAKEN, remark) if every == 1 else (Fate.NOT_POSSIBLE, f"{remark}: there is one after each epoch")


def _tracker(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    return Fate.TAKEN, draft.set("logging.trackers", ["wandb"])


def _tracker_text(target: str) -> Rule:
    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if not value or draft.settings.get("monitoring.enable_wandb") is not True:
            return Fate.DEFAULT, "off"
        return Fate.TAKEN, draft.set(target, values.text(value))

    return handle


def _output(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("output", f"{values.text(value).rstrip('/')}/{draft.request.path.stem}")


def _processes(value: Any, draft: ImportDraft) -> Outcome:
    """Keep the size of a step with pipeline stages, which are none here: each GPU has micro-batches of its own."""
    gpus, stages = values.whole(value), values.whole(draft.settings.get("pipeline_stages", 1))
    if stages == 1:
        return Fate.NO_MEANING, f"start as many processes: torchrun --nproc-per-node {gpus}"
    steps = max(gpus // stages, 1) * values.whole(draft.settings.get("gradient_accumulation_steps", 1))
    return Fate.TAKEN, f"{draft.set('train.micro_batches_per_step', steps)}, for {gpus} GPUs of {stages} stages"


def _stages(value: Any, draft: ImportDraft) -> Outcome:
    if values.whole(value) == 1:
        return Fate.DEFAULT, "off"
    return Fate.NOT_POSSIBLE, (
        "a model is not split into stages; with several GPUs its weights are sharded (parallel.strategy), and each has "
        "micro-batches of its own: train.micro_batches_per_step keeps the size of a step"
    )


def _control(value: Any, draft: ImportDraft) -> Outcome:
    takes = datasets.conditioning_of(draft).takes
    if "source" not in takes:
        return Fate.NOT_POSSIBLE, "this model takes no pictures to edit: choose one that does with --model"
    return Fate.TAKEN, draft.set(f"dataset.{draft.numbers[0]}.source", values.text(value))


def _prefix(value: Any, draft: ImportDraft, number: int) -> str:
    form = value.replace("{", "{{").replace("}", "}}")
    return draft.set(f"dataset.{number}.caption", f"{form}{{text}}") if form else ""


def _shuffle(value: Any, draft: ImportDraft, number: int) -> str:
    """Shuffle tags; their number of orders repeats the clips."""
    return draft.set(f"dataset.{number}.shuffle_tags", True) if value else ""


def _delimiter(value: Any, draft: ImportDraft, number: int) -> str:
    separator = values.text(value)
    if draft.get(f"dataset.{number}.shuffle_tags") is not True:
        return ""
    return draft.set(f"dataset.{number}.tag_separator", separator.strip() or separator)


def _skip(value: Any, draft: ImportDraft, number: int) -> str:
    return "" if values.flag(value) else draft.set(f"dataset.{number}.missing_caption", "")


def _in_buckets(value: Any, draft: ImportDraft) -> Outcome:
    """Tell what becomes of sizes, which all datasets share here; the entries are made of all settings together."""
    if draft.key.startswith("directory.") and draft.settings.count("directory") > 1:
        return Fate.NOT_POSSIBLE, "all datasets share the [[bucket]] entries, which have these sizes too"
    return Fate.TAKEN, "[[bucket]] entries and buckets.aspect_ratios"


def _resolutions(value: Any, draft: ImportDraft) -> Outcome:
    if isinstance(value, list) and len(value) > 1:
        return Fate.NOT_POSSIBLE, (
            "a clip is not trained at each size in an epoch: with as many repeats, each use draws one of the sizes"
        )
    return _in_buckets(value, draft)


def _batch(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, "bucket.batch_size"


def _repeats(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, "dataset.repeats"


def _inherited(name: str, set_one: Callable[[Any, ImportDraft, int], str]) -> dict[str, Rule]:
    """Return the rules of a setting of a directory, which all directories without it take from the top of the file."""

    def of_all(value: Any, draft: ImportDraft) -> Outcome:
        numbers = range(draft.settings.count("directory"))
        own = {f"directory.{number}.{name}" for number in numbers} & draft.settings.values.keys()
        found = [set_one(value, draft, n) for n in numbers if f"directory.{n}.{name}" not in own]
        remarks = ", ".join(filter(None, found))
        return (Fate.TAKEN, remarks) if remarks else (Fate.DEFAULT, "as here")

    def of_one(value: Any, draft: ImportDraft) -> Outcome:
        remark = set_one(value, draft, draft.numbers[0])
        return (Fate.TAKEN, remark) if remark else (Fate.DEFAULT, "as here")

    return {name: of_all, f"directory.*.{name}": of_one}


def _both(name: str, rule: Rule) -> dict[str, Rule]:
    return {name: rule, f"directory.*.{name}": rule}


_EVALUATION = rules.impossible(
    "clips are held out of the datasets: set validation.split, and add this dataset's directories if they may be trained"
)
_RATES = rules.impossible("all layers have one rate, train.learning_rate: leave layers out with lora.targets")
_TEXT_RATES = rules.impossible("text encoders are not trained", unless=(None, 0))

RULES: dict[str, Rule] = {
    "output_dir": _output,
    "dataset": rules.without_meaning("it is read too"),
    "eval_datasets": _EVALUATION,
    "eval_datasets.*": _EVALUATION,
    "epochs": _epochs,
    "max_steps": values.count("train.max_steps"),
    **dict.fromkeys(("micro_batch_size_per_gpu", "image_micro_batch_size_per_gpu"), _batch),
    "pipeline_stages": _stages,
    "gradient_accumulation_steps": values.count("train.gradient_accumulation_steps"),
    "gradient_clipping": values.amount("train.max_grad_norm", none=NONE),
    "warmup_steps": values.count("train.warmup_steps", 0),
    "force_constant_lr": _constant_rate,
    "lr_scheduler": _schedule,
    "blocks_to_swap": _swap,
    "pseudo_huber_c": rules.impossible("the trainer does not read it; for a Huber loss set objective.loss"),
    "huber_delta": _distance("huber"),
    "smooth_l1_beta": _distance("smooth-l1"),
    **dict.fromkeys(("eval_every_n_epochs", "eval_every_n_steps", "eval_every_n_examples"), _NO_VALIDATION),
    **dict.fromkeys(("eval_before_first_step", "eval_gradient_accumulation_steps"), _NO_VALIDATION),
    **dict.fromkeys(("eval_micro_batch_size_per_gpu", "eval_image_micro_batch_size_per_gpu"), _NO_VALIDATION),
    **dict.fromkeys(("image_eval_micro_batch_size_per_gpu", "disable_block_swap_for_eval"), _NO_VALIDATION),
    "save_every_n_epochs": _save_epochs,
    "save_every_n_steps": values.count("checkpoints.every_steps"),
    "save_every_n_examples": _save_examples,
    "checkpoint_every_n_epochs": _checkpoint_epochs,
    "checkpoint_every_n_minutes": values.amount("checkpoints.every_minutes", 1e-3),
    "activation_checkpointing": _checkpointing,
    **dict.fromkeys(("reentrant_activation_checkpointing", "caching_batch_size", "map_num_proc"), _SPEED),
    **dict.fromkeys(("partition_method", "partition_split"), rules.without_meaning("a model is not split into stages")),
    "save_dtype": rules.by_name("exports.dtype", _SAVED, "bfloat16", "exports have no such dtype"),
    "compile": values.switch("train.compile"),
    **dict.fromkeys(("steps_per_print", "logging_steps"), rules.without_meaning("train.log_every is for the terminal")),
    "video_clip_mode": _clip_mode,
    "x_axis_examples": rules.without_meaning("curves have steps"),
    **dict.fromkeys(("resume_from_checkpoint", "regenerate_cache"), rules.without_meaning("a run resumes by itself")),
    "uncond_fraction": values.amount("objective.caption_dropout", 0, 1),
    "model.type": _model_type,
    "model.dtype": _dtype,
    **dict.fromkeys(("model.transformer_dtype", "model.diffusion_model_dtype"), _base),
    "model.guidance": rules.only((1, 1.0), "as here", "networks with guidance as an input are trained at 1"),
    "model.timestep_sample_method": _timesteps,
    "model.sigmoid_scale": _sigmoid_scale,
    "model.shift": _shift,
    "model.image_shift": _image_shift,
    "model.flux_shift": _flux_shift,
    "model.lumina_shift": rules.without_meaning("it belongs to another model"),
    **dict.fromkeys(("model.min_t", "model.max_t"), _bound),
    **dict.fromkeys((f"model.{key}" for key in ("transformer_path", "diffusion_model", "single_file_path")), _weights),
    **dict.fromkeys((f"model.{key}" for key in ("checkpoint_path", "ckpt_path", "diffusers_path")), _weights),
    **dict.fromkeys((f"model.{key}" for key in ("vae", "vae_path", "llm_path", "clip_path", "t5_path")), _OF_RELEASE),
    **dict.fromkeys(
        (f"model.{key}" for key in ("byt5_path", "llama3_path", "text_encoder", "text_encoder_path")), _OF_RELEASE
    ),
    **dict.fromkeys(("model.text_encoders.*", "model.llama3_4bit", "model.text_encoder_nf4"), _OF_RELEASE),
    **dict.fromkeys(("model.text_encoder_fp8", "model.cache_text_embeddings"), _SPEED),
    "model.audio_vae": rules.impossible("sound is not trained by this model: --model minimax-h3-sound trains it"),
    **dict.fromkeys(("model.max_sequence_length", "model.max_llama3_sequence_length"), _OF_RELEASE),
    "model.bypass_guidance_embedding": rules.impossible("guidance stays an input of the network"),
    "model.v_pred": _v_prediction,
    "model.min_snr_gamma": _min_snr,
    "model.debiased_estimation_loss": _debiased,
    "model.unet_lr": values.amount("train.learning_rate", 1e-300),
    **dict.fromkeys((*RATES_OF_TEXTS, "model.llm_adapter_lr"), _TEXT_RATES),
    **dict.fromkeys((f"model.{key}_lr" for key in ("self_attn", "cross_attn", "mlp", "mod")), _RATES),
    "model.llm_adapter_path": _OF_RELEASE,
    "model.multiscale_loss_weight": rules.impossible("the loss has one scale"),
    "model.first_frame_conditioning_p": _first_frame,
    "model.merge_adapters": _merged,
    "model.cfg": _cfg,
    "adapter.type": _adapter_type,
    "adapter.rank": _rank,
    "adapter.alpha": rules.without_meaning("the trainer refuses it; alpha is the rank"),
    "adapter.dtype": rules.only(("float32",), "as here", "adapters are trained in float32"),
    "adapter.dropout": _dropout,
    "adapter.decompose_factor": _factor,
    "adapter.rank_dropout": rules.impossible("only inputs are dropped: set lora.dropout"),
    "adapter.exclude_modules": rules.impossible("name the layers to adapt: lora.targets"),
    "adapter.init_from_existing": _existing,
    "adapter.fuse_adapters": rules.impossible("merge it into the weights first"),
    "adapter.fuse_adapters.*": rules.impossible("merge it into the weights first"),
    "optimizer.type": _optimizer,
    "optimizer.lr": _of_optimizer("learning_rate", 0, values.amount("train.learning_rate", 1e-300)),
    "optimizer.betas": _of_optimizer("betas", 1, _betas),
    "optimizer.eps": _of_optimizer("eps", 2, _eps),
    "optimizer.weight_decay": _of_optimizer("weight_decay", 3, values.amount("train.weight_decay")),
    "optimizer.gradient_release": rules.impossible("gradients are kept until the step: set parallel.offload = true"),
    "optimizer.stabilize": rules.impossible("gradients are clipped by train.max_grad_norm"),
    **dict.fromkeys(
        ("optimizer.muon", "optimizer.adamuon", "optimizer.normuon"), rules.without_meaning("optimizer.type tells")
    ),
    "optimizer.*": rules.impossible("the optimizer has no such setting here"),
    "monitoring.enable_wandb": _tracker,
    "monitoring.wandb_tracker_name": _tracker_text("logging.project"),
    "monitoring.wandb_run_name": _tracker_text("logging.name"),
    "monitoring.wandb_api_key": rules.without_meaning("`wandb login` or WANDB_API_KEY gives it"),
    "num_gpus": _processes,
    "directory.*.path": lambda value, draft: (
        Fate.TAKEN,
        datasets.place(draft, draft.numbers[0], values.text(value)),
    ),
    "directory.*.mask_path": values.place("dataset.*.loss_mask"),
    "directory.*.default_mask_file": rules.impossible("clips without a mask count as a whole"),
    "directory.*.control_path": _control,
    **{key: rule for name in data.SHAPES for key, rule in _both(name, _in_buckets).items()},
    **_both("resolutions", _resolutions),
    **_both("num_repeats", _repeats),
    **_inherited("caption_prefix", _prefix),
    **_inherited("shuffle_tags", _shuffle),
    **_inherited("cache_shuffle_num", _shuffle),
    **_inherited("cache_shuffle_delimiter", _delimiter),
    **_inherited("skip_empty_caption", _skip),
    **_both("online_captions", rules.impossible("write captions.json as a list (.jsonl) with columns path and text")),
    **_both("shuffle_metadata", rules.without_meaning("clips are shuffled in each epoch")),
    "subsample_ratio": rules.impossible("use dataset.repeats below 1, which takes other clips in each epoch"),
    **dict.fromkeys(
        (
            *("deepspeed", "deepspeed_config", "config", "local_rank", "master_port", "reset_dataloader"),
            *("reset_optimizer", "reset_optimizer_params", "cache_only", "trust_cache", "i_know_what_i_am_doing"),
            *("dump_dataset", "test_sample", "num_nodes", "include", "exclude", "hostfile", "master_addr"),
        ),
        rules.without_meaning("an option of the command"),
    ),
}
