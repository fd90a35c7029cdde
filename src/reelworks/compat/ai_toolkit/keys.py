"""Translations of ai-toolkit's settings, by their names within a process, to recipe keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from reelworks.catalog import listing
from reelworks.compat import datasets, rules
from reelworks.compat.ai_toolkit import models
from reelworks.compat.draft import FormerSettings, ImportDraft
from reelworks.compat.rules import Fate, Outcome, Rule
from reelworks.core.toml_none import WORD as NONE

_RELEASE_SHIFTS = ("shift", "flux_shift", "lumina2_shift")
_FLAT = ("linear", "weighted", "one_step", "two_step", "four_step", "eight_step", "next_sample")
_ADAMW = {"betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01}
# By the beginning of its name: the optimizer here, its settings in ai-toolkit, and how it differs; "" if it does not.
_OPTIMIZERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "prodigy8bit": ("prodigy", {"eps": 1e-6, "betas": [0.9, 0.999]}, "its state has 32 bits here"),
    "prodigy": ("prodigy", {"eps": 1e-6, "betas": [0.9, 0.999]}, ""),
    "dadapt": ("prodigy", {"eps": 1e-6, "betas": [0.9, 0.999]}, "D-Adaptation is not there, and Prodigy replaces it"),
    "adamw8": ("adamw8bit", _ADAMW, ""),
    "adam8": ("adamw8bit", {**_ADAMW, "weight_decay": 0.0}, "weight decay is decoupled here"),
    "adamw": ("adamw", _ADAMW, ""),
    "adam": ("adamw", {**_ADAMW, "weight_decay": 0.0}, "weight decay is decoupled here"),
    "adafactor": (
        "adafactor",
        {"weight_decay": 0.0},
        "its rate is a share of the size of the weights here: 0.01 is usual",
    ),
    "automagic": ("adamw", {**_ADAMW, "weight_decay": 0.0}, "it is not there, and AdamW with this rate replaces it"),
    "lion": (
        "adamw",
        {**_ADAMW, "weight_decay": 0.0},
        "Lion is not there, and AdamW replaces it: give it 3 to 10 times the rate",
    ),
}
_OTHER_OPTIMIZER = ("adamw", _ADAMW, "it is not there, and AdamW replaces it")
_LEAST_PRODIGY_RATE = 0.1  # a smaller one becomes 1.0 in ai-toolkit
_SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine": "cosine",
    "cosine_with_restarts": "cosine",
}
_BITS = {"8": "float8", "4": "nf4", "3": "nf4", "2": "nf4", "5": "float8", "6": "float8", "7": "float8"}
_DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "float16"), "bfloat16"),
    **dict.fromkeys(("fp32", "float32", "float"), "float32"),
}
_FILE_DTYPES = {**dict.fromkeys(("bf16", "bfloat16"), "bfloat16"), **dict.fromkeys(("fp16", "float16"), "float16")}
_FILE_DTYPES |= dict.fromkeys(("fp32", "float32", "float"), "float32")
_FULL_RANK = 100_000  # above any width, so that both factors of a LoKr are full
DATASET_DEFAULTS: dict[str, Any] = {
    "resolution": 512,
    "num_frames": 1,
    "caption_dropout_rate": 0.0,
    "default_caption": None,
}
DEFAULTS: dict[str, Any] = {
    "save.save_every": 1000,
    "save.dtype": "float16",
    "save.max_step_saves_to_keep": 5,
    "train.steps": 1000,
    "train.lr": 1e-6,
    "train.optimizer": "adamw",
    "train.batch_size": 1,
    "train.gradient_checkpointing": True,
    "train.max_grad_norm": 1.0,
    "train.timestep_type": "sigmoid",
    "train.dtype": "fp32",
    "train.ema_config.use_ema": False,
    "logging.log_every": 100,
}
NETWORK_DEFAULTS: dict[str, Any] = {"network.type": "lora", "network.linear": 4, "network.linear_alpha": 1.0}
SAMPLE_DEFAULTS: dict[str, Any] = {
    **{"sample.sample_every": 100, "sample.width": 512, "sample.height": 512, "sample.num_frames": 1},
    **{"sample.guidance_scale": 7, "sample.sample_steps": 20},
}
FIRST = (
    "train.optimizer",
    "network.type",
    "datasets.*.folder_path",
    "datasets.*.dataset_path",
    "sample.prompts",
    "sample.samples.*.prompt",
)


def sizes_of(settings: FormerSettings, number: int) -> list[Any]:
    """Return the resolutions of a dataset, each of which ai-toolkit makes a dataset of its own."""
    value = settings.get(f"datasets.{number}.resolution", 512)
    found = value if isinstance(value, list) else [value]
    return [size for place, size in enumerate(found) if size not in found[:place]]


def accumulation(settings: FormerSettings) -> int:
    """Return the number of its steps until the optimizer's; only the older of its two settings counts so."""
    value = settings.get("train.gradient_accumulation_steps", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 1 else 1


def _uses(draft: ImportDraft, number: int) -> Outcome:
    """Set how often a clip is trained in an epoch: its repeats, times its sizes, times two if it is mirrored too."""
    settings = draft.settings
    repeats, sizes = settings.get(f"datasets.{number}.num_repeats", 1), len(sizes_of(settings, number))
    mirrored = 2 if settings.get(f"datasets.{number}.flip_x") is True else 1
    total = max(int(repeats), 1) * sizes * mirrored
    if total == 1:
        return Fate.DEFAULT, "1"
    return Fate.TAKEN, draft.set(f"dataset.{number}.repeats", total)


def _resolution(value: Any, draft: ImportDraft) -> Outcome:
    number, count = draft.numbers[0], draft.settings.count("datasets")
    all_sizes = [sizes_of(draft.settings, each) for each in range(count)]
    wanted = sorted({datasets.side_of(size) for sizes in all_sizes for size in sizes}, reverse=True)
    set_buckets(draft, wanted)
    _, remark = _uses(draft, number)
    names = ", ".join(f"{size}px" for size in wanted)
    told = f"[[bucket]] resolution = {names}; smaller pictures are enlarged, which ai-toolkit trains at their own size"
    if len({*map(tuple, map(sorted, all_sizes))}) > 1:
        return Fate.NOT_POSSIBLE, f"{told}; all datasets have the same sizes here: split the recipe if that matters"
    if len(wanted) > 1:
        told += f"; with {remark}, each use of a clip draws one of the {len(wanted)} sizes, so that on average each is used once"
    return Fate.TAKEN, told


def set_buckets(draft: ImportDraft, sizes: list[int]) -> None:
    """Set a bucket for each resolution and the frames of the datasets."""
    frames = {1}
    for number in range(draft.settings.count("datasets")):
        if draft.settings.get(f"datasets.{number}.auto_frame_count") is True and not _pictures_only(draft):
            frames |= {*datasets.ladder(draft, datasets.preset_of(draft).release.num_frames)}  # type: ignore[union-attr]
        else:
            frames.add(datasets.frames_here(draft, int(draft.settings.get(f"datasets.{number}.num_frames", 1))))
    datasets.set_sizes(draft, [f"{size}px" for size in sizes], sorted(frames), each=True)
    draft.set("buckets.upscale", True, "smaller pictures are trained too")


def _pictures_only(draft: ImportDraft) -> bool:
    return datasets.preset_of(draft).config.pictures_only


def _folder(value: Any, draft: ImportDraft) -> Outcome:
    number = draft.numbers[0]
    if not isinstance(value, str) or not value.strip():
        return Fate.TO_FILL_IN, f"a folder is needed: {draft.get(f'dataset.{number}.path')} stands in its place"
    if value.lower().endswith(".json"):
        datasets.place(draft, number, value.removesuffix(".json"))
        return Fate.NOT_POSSIBLE, "lists in JSON are not read: write one as .jsonl, with the columns path and text"
    return Fate.TAKEN, datasets.place(draft, number, value)


def _extension(value: Any, draft: ImportDraft) -> Outcome:
    suffix = f".{str(value).lstrip('.')}"
    if suffix in listing.SUFFIXES:
        return Fate.DEFAULT, f"captions are read from {' and '.join(listing.SUFFIXES)} files beside the clips"
    return Fate.NOT_POSSIBLE, f"captions are read from {' and '.join(listing.SUFFIXES)} files: rename them"


def _default_caption(value: Any, draft: ImportDraft) -> Outcome:
    text = value if isinstance(value, str) else ""
    return Fate.TAKEN, draft.set(f"dataset.{draft.numbers[0]}.missing_caption", text)


def _trigger(value: Any, draft: ImportDraft) -> Outcome:
    if not isinstance(value, str) or not value.strip():
        return Fate.DEFAULT, "none"
    mine = draft.numbers[:1] or tuple(
        number
        for number in range(draft.settings.count("datasets"))
        if not draft.settings.get(f"datasets.{number}.trigger_word")
    )
    remark = next(
        (text for text in [datasets.adds_word(draft, number, value.strip()) for number in mine]), "no dataset"
    )
    return Fate.TAKEN, f"{remark}; captions that have it already are not told apart: leave it out if they do"


def _control(value: Any, draft: ImportDraft) -> Outcome:
    """Give the model the control folders of a dataset as what it takes: sources of edits, or a control."""
    number = draft.numbers[0]
    own = draft.settings.get(f"datasets.{number}.control_path")
    numbered = [draft.settings.get(f"datasets.{number}.control_path_{i}") for i in (1, 2, 3)]
    folders = [folder for folder in (numbered if any(numbered) else own if isinstance(own, list) else [own]) if folder]
    takes = datasets.conditioning_of(draft).takes
    if not folders:
        return Fate.DEFAULT, "none"
    if "source" in takes:
        return Fate.TAKEN, draft.set(f"dataset.{number}.source", folders if len(folders) > 1 else folders[0])
    if "control" in takes and len(folders) == 1:
        return Fate.TAKEN, draft.set(f"dataset.{number}.control", folders[0])
    return (
        Fate.NOT_POSSIBLE,
        f"{draft.get('model.name')} takes no control pictures here: the clips are trained without them",
    )


def _dropout(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the share of clips without caption, which each dataset has for itself in ai-toolkit."""
    rates = [
        float(draft.settings.get(f"datasets.{number}.caption_dropout_rate", 0.0))
        for number in range(draft.settings.count("datasets"))
    ]
    remark = draft.set("objective.caption_dropout", rates[0])
    if len({*rates}) > 1:
        return Fate.NOT_POSSIBLE, f"all datasets have the same rate here, that of the first: {remark}"
    return Fate.TAKEN, remark


def _num_frames(value: Any, draft: ImportDraft) -> Outcome:
    number, wanted = draft.numbers[0], int(value)
    moves = any(
        draft.settings.get(f"datasets.{other}.num_frames", 1) != 1
        or draft.settings.get(f"datasets.{other}.auto_frame_count") is True
        for other in range(draft.settings.count("datasets"))
    )
    if wanted == 1:
        if moves and draft.settings.get(f"datasets.{number}.auto_frame_count") is not True:
            draft.set(f"dataset.{number}.filter", "kind == 'image'")
        return Fate.TAKEN, "pictures alone: [[bucket]] num_frames = 1"
    if _pictures_only(draft):
        return Fate.NOT_POSSIBLE, f"{draft.get('model.name')} takes pictures only"
    draft.set("data.short_clips", "hold", "shorter clips are stretched in ai-toolkit")
    own = datasets.frames_here(draft, wanted)
    told = f"[[bucket]] num_frames = {own}, and 1 for pictures beside the videos"
    if own != wanted:
        return Fate.NOT_POSSIBLE, f"{datasets.geometry_of(draft).frame_words}: {told}"
    if draft.settings.get(f"datasets.{number}.shrink_video_to_frames", True) is not False:
        return (
            Fate.NOT_POSSIBLE,
            f"{told}; consecutive frames, where ai-toolkit takes frames from all over a video and so speeds it up",
        )
    return Fate.TAKEN, told


def _rate(value: Any, draft: ImportDraft) -> Outcome:
    number = draft.numbers[0]
    consecutive = draft.settings.get(f"datasets.{number}.shrink_video_to_frames", True) is False
    if not consecutive and draft.settings.get(f"datasets.{number}.auto_frame_count") is not True:
        return Fate.NO_MEANING, "frames from all over a video have no rate"
    return Fate.TAKEN, draft.set("data.fps", float(value))


def _any_flag(key: str, target: str, value: Any) -> Rule:
    """Set a key that holds for all datasets here if one of them asks for it."""

    def handle(own: Any, draft: ImportDraft) -> Outcome:
        if not own:
            return Fate.DEFAULT, "off"
        others = [draft.settings.get(f"datasets.{n}.{key}") for n in range(draft.settings.count("datasets"))]
        remark = draft.set(target, value)
        return Fate.TAKEN, remark if all(others) else f"{remark}, for all datasets"

    return handle


def _square(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    draft.set("buckets.max_crop", 0.95)
    return Fate.TAKEN, draft.set("buckets.aspect_ratios", ["1:1"])


def _first_frame(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if datasets.conditioning_of(draft).frames:
        return Fate.TAKEN, draft.set("objective.mask_ratios.image_head", 1.0)
    return Fate.NO_MEANING, "the model decides"


def _sound(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if not datasets.conditioning_of(draft).sound:
        return Fate.NOT_POSSIBLE, f"{draft.get('model.name')} is trained without sound"
    draft.set("data.fps", "model", "clips with sound need one rate")
    draft.set("sound.missing", "silent", "clips without sound are trained with silence in ai-toolkit")
    return Fate.TAKEN, f'model.name = "{draft.get("model.name")}"'


def _repeats(value: Any, draft: ImportDraft) -> Outcome:
    return _uses(draft, draft.numbers[0])


def _mirrored(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    _, remark = _uses(draft, draft.numbers[0])
    return (
        Fate.TAKEN,
        f"{draft.set(f'dataset.{draft.numbers[0]}.flip', 0.5)}, {remark}: ai-toolkit adds a mirrored copy of each",
    )


def _regularises(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    return Fate.NOT_POSSIBLE, (
        "trained like the other clips, where ai-toolkit takes every second step from such datasets: set its repeats so that "
        "it has half of the clips, or prior_prediction = true, which keeps what the model knows"
    )


def _steps(value: Any, draft: ImportDraft) -> Outcome:
    own = max(int(value) // accumulation(draft.settings), 1)
    remark = draft.set("train.max_steps", own)
    if own != value:
        return (
            Fate.TAKEN,
            f"{remark}: its steps are micro-batches, {accumulation(draft.settings)} for each optimizer step",
        )
    return Fate.TAKEN, remark


def _interval(target: str) -> Rule:
    """Convert steps between two events, which are micro-batches if ai-toolkit accumulates in its older way."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        steps = NONE if not value else max(int(value) // accumulation(draft.settings), 1)
        return Fate.TAKEN, draft.set(target, steps)

    return handle


def _accumulation(value: Any, draft: ImportDraft) -> Outcome:
    if value == -1:
        return (
            Fate.NOT_POSSIBLE,
            "an optimizer step is not an epoch here: set train.gradient_accumulation_steps to its micro-batches",
        )
    if value in (None, 0, 1):
        return Fate.DEFAULT, "1"
    return Fate.TAKEN, draft.set("train.gradient_accumulation_steps", value)


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).lower()
    here, settings, why = next((own for start, own in _OPTIMIZERS.items() if name.startswith(start)), _OTHER_OPTIMIZER)
    remark = draft.set("train.optimizer", here)
    for key, number in settings.items():
        draft.set(f"train.{key}", number, f"default of {value} in ai-toolkit")
    return (Fate.NOT_POSSIBLE, f"{remark}: {why}") if why else (Fate.TAKEN, remark)


def _learning_rate(value: Any, draft: ImportDraft) -> Outcome:
    rate = float(value)
    if draft.get("train.optimizer") == "prodigy" and rate < _LEAST_PRODIGY_RATE:
        return Fate.TAKEN, f"{draft.set('train.learning_rate', 1.0)}, as ai-toolkit does below {_LEAST_PRODIGY_RATE}"
    return Fate.TAKEN, draft.set("train.learning_rate", rate)


def _own_rate(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, draft.settings.get("train.lr")):
        return Fate.DEFAULT, "train.lr"
    return Fate.TAKEN, draft.set("train.learning_rate", float(value))


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    if value in _SCHEDULES:
        if (
            value == "constant_with_warmup"
            and "train.lr_scheduler_params.num_warmup_steps" not in draft.settings.values
        ):
            draft.set("train.warmup_steps", 1000)
        return Fate.TAKEN, draft.set("train.learning_rate_schedule", _SCHEDULES[value])
    remark = draft.set("train.learning_rate_schedule", "constant")
    return (
        Fate.NOT_POSSIBLE,
        f"{remark} replaces it: cosine, linear (falling) and constant are there, with train.warmup_steps",
    )


def _timesteps(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("objective.name", "rectified-flow") != "rectified-flow":
        return Fate.NO_MEANING, "all 1000 steps are trained alike"
    flat = value in _FLAT or any(draft.settings.get(f"train.linear_timesteps{v}") for v in ("", "2"))
    if value in _RELEASE_SHIFTS and not flat:
        remark = draft.set("objective.timestep_sampling", "uniform")
        shift = draft.get("objective.timestep_shift")
        if value == "flux_shift":
            return (
                Fate.TAKEN,
                f"{remark}, with the release's shift, {shift}, for all sizes, which grows with them in ai-toolkit",
            )
        return Fate.TAKEN, f"{remark}, with the release's shift, {shift}"
    draft.set("objective.timestep_shift", NONE)
    if flat:
        remark = draft.set("objective.timestep_sampling", "uniform")
        if value == "weighted":
            return Fate.NOT_POSSIBLE, f"{remark}; its table of weights is not there, all timesteps count alike"
        if value not in ("linear", "sigmoid"):
            return Fate.NOT_POSSIBLE, f"{remark}; all timesteps are trained, and not a few"
        return Fate.TAKEN, remark
    remark = draft.set("objective.timestep_sampling", "logit-normal")
    if value == "sigmoid":
        return Fate.TAKEN, f"{remark}, without a shift"
    return Fate.NOT_POSSIBLE, f"{remark} replaces it"


def _flat_timesteps(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    remark = draft.set("objective.loss_weighting", "bell")
    if draft.key == "train.linear_timesteps2":
        return Fate.NOT_POSSIBLE, f"{remark}; its weights do not fall towards noise"
    return Fate.TAKEN, f'objective.timestep_sampling = "uniform", {remark}'


def _emphasis(value: Any, draft: ImportDraft) -> Outcome:
    if value == "balanced":
        return Fate.DEFAULT, "balanced"
    mean = 1.0 if value == "content" else -1.0
    return Fate.NOT_POSSIBLE, (
        f"its cubic density is not there: objective.timestep_sampling = 'logit-normal' with objective.logit_mean = {mean} is similar"
    )


def _limit(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the first and last index of its descending timesteps to a range."""
    low, high = (draft.settings.get(f"train.{which}_denoising_steps", end) for which, end in (("min", 0), ("max", 999)))
    if (low, high) == (0, 999):
        return Fate.DEFAULT, "all timesteps"
    if draft.get("objective.name", "rectified-flow") != "rectified-flow":
        return Fate.NOT_POSSIBLE, "all timesteps are trained"
    return Fate.TAKEN, draft.set("objective.timestep_range", [float(max(999 - high, 0)), float(min(1000 - low, 1000))])


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    if value in ("mse", None):
        return Fate.DEFAULT, "squared error"
    if value == "pseudo_huber":
        draft.set("objective.huber_delta", 0.01)
        return Fate.TAKEN, f"{draft.set('objective.loss', 'huber')}, whose bend is sharper"
    if value == "mae":
        draft.set("objective.huber_delta", 0.01)
        return Fate.NOT_POSSIBLE, f"{draft.set('objective.loss', 'smooth-l1')} with a small delta replaces it"
    return Fate.NOT_POSSIBLE, "this loss is not there; the squared error replaces it"


def _snr(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if draft.get("objective.name", "rectified-flow") == "rectified-flow":
        return Fate.NO_MEANING, "flow matching has no such weights in ai-toolkit"
    draft.set("objective.loss_weighting", "min-snr")
    return Fate.TAKEN, f'objective.loss_weighting = "min-snr", {draft.set("objective.snr_gamma", float(value))}'


def _guidance(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    target = draft.settings.get("train.guidance_loss_target", 3.0)
    scale = sum(target) / len(target) if isinstance(target, list) else float(target)
    remark = draft.set("objective.target_guidance_scale", scale)
    same = not isinstance(target, list) and not draft.settings.get("train.do_guidance_loss_cfg_zero")
    return (Fate.TAKEN, remark) if same else (Fate.NOT_POSSIBLE, f"{remark} for all clips, without CFG-Zero")


def _average(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("train.ema_config.use_ema") is not True:
        draft.set("exports.weights", "model", "no average")
        return Fate.TAKEN, draft.set("train.ema_decay", 0.0)
    draft.set("exports.weights", "ema", "")
    return Fate.TAKEN, draft.set("train.ema_decay", draft.settings.get("train.ema_config.ema_decay", 0.999))


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


def _attention(value: Any, draft: ImportDraft) -> Outcome:
    if value == "native":
        return Fate.DEFAULT, "torch chooses"
    known = next((name for name in ("flash_3", "flash_4", "flash", "cudnn") if name in str(value)), None)
    if known is None:
        return Fate.NOT_POSSIBLE, "this kernel is not there: torch chooses"
    return Fate.TAKEN, draft.set("model.attention", known.replace("_", "-"))


def _prompts(draft: ImportDraft) -> Iterator[str]:
    settings, trigger = draft.settings, draft.settings.get("trigger_word")
    found = [settings.get(f"sample.samples.{number}.prompt") for number in range(settings.count("sample.samples"))]
    plain = settings.get("sample.prompts", [])
    for text in found or (plain if isinstance(plain, list) else []):
        if isinstance(text, str) and (own := text.partition(" --")[0].strip()):
            yield re.sub(r"\[(?:trigger|name)\]", lambda _: trigger if isinstance(trigger, str) else "", own)


def _previews(value: Any, draft: ImportDraft) -> Outcome:
    prompts = list(dict.fromkeys(_prompts(draft)))
    if not prompts:
        return Fate.DEFAULT, "no previews"
    wants = datasets.conditioning_of(draft)
    pictures = _given_pictures(draft.settings)
    if wants.needs_first_frame or "source" in wants.needs:
        if not pictures:
            return (
                Fate.NOT_POSSIBLE,
                "previews need a picture: set samples.prompts with samples.source or samples.reference",
            )
        key = "samples.source" if "source" in wants.takes else "samples.reference"
        draft.set(key, pictures if len(pictures) > 1 and key == "samples.source" else pictures[0])
    return Fate.TAKEN, draft.set("samples.prompts", prompts)


def _given_pictures(settings: FormerSettings) -> list[str]:
    """Return the pictures of the first preview, which all previews get here."""
    prompts = settings.get("sample.prompts", [])
    first = "sample.samples.0."
    found = [settings.get(f"{first}{key}") for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")]
    if isinstance(prompts, list):
        found += re.findall(r"--ctrl_img\s+(\S+)", str(next(iter(prompts), "")))
    return list(dict.fromkeys(str(path) for path in found if path))


def _if_previewed(rule: Rule) -> Rule:
    """Convert a setting of previews only if there are any."""
    return lambda value, draft: rule(value, draft) if draft.get("samples.prompts") else (Fate.NO_MEANING, "no previews")


def _preview_side(key: str) -> Rule:
    return _if_previewed(lambda value, draft: (Fate.TAKEN, datasets.set_preview_side(draft, key, value)))


def _preview_frames(value: Any, draft: ImportDraft) -> Outcome:
    wanted = 1 if _pictures_only(draft) else max(int(value), 1)
    return Fate.TAKEN, draft.set("samples.num_frames", datasets.frames_here(draft, wanted))


def _preview_picture(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("samples.source") is None and draft.get("samples.reference") is None:
        return Fate.NOT_POSSIBLE, "the model takes no picture for previews here"
    if draft.numbers[:1] == (0,):
        return Fate.TAKEN, f"samples.{'source' if draft.get('samples.source') else 'reference'}"
    return Fate.NOT_POSSIBLE, "all previews have the pictures of the first"


def _never(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    for key in (
        "prompts",
        "every_steps",
        "width",
        "height",
        "num_frames",
        "fps",
        "guidance_scale",
        "num_inference_steps",
    ):
        draft.remove(f"samples.{key}")
    return Fate.TAKEN, "no samples.prompts"


def has_network(settings: FormerSettings) -> bool:
    """Whether a LoRA is trained, and not all weights."""
    return any(key == "network" or key.startswith("network.") for key in settings.values)


def _dtype(value: Any, draft: ImportDraft) -> Outcome:
    if value in ("fp16", "float16"):
        return Fate.NOT_POSSIBLE, f"float16 is not there, {draft.set('precision.compute', 'bfloat16')} replaces it"
    return rules.by_name("precision.compute", _DTYPES, "bfloat16", "this dtype is not there")(value, draft)


def _reported(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    for key, name in (("project_name", "project"), ("run_name", "name")):
        if isinstance(own := draft.settings.get(f"logging.{key}"), str) and own:
            draft.set(f"logging.{name}", own, f"logging.{key}")
    return Fate.TAKEN, draft.set("logging.trackers", ["wandb"])


def _part_of(key: str) -> Rule:
    return rules.without_meaning(f"read with {key}")


def _output(value: Any, draft: ImportDraft) -> Outcome:
    folder, name = draft.settings.get("training_folder"), draft.settings.get("config.name")
    parts = [part.rstrip("/\\") for part in (folder, name) if isinstance(part, str) and part.strip("/\\ ")]
    if not parts:
        return Fate.NO_MEANING, "runs/ and the recipe's name"
    return Fate.TAKEN, draft.set("output", "/".join(parts))


def _seed(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.TAKEN, draft.set("seed", value)) if value is not None else (Fate.NO_MEANING, "seed = 42 by default")


_NOISE = "noise is drawn as the model was trained with it; noise is changed by nothing here"
_OTHER_LOSS = "this term of the loss is not there"
_TEXTS = "text encoders are not trained: leave it out; lora.targets decides what of the denoiser is"
_ADAPTER = "adapters of this kind (IP-Adapter, ControlNet, T2I) are not trained: leave it out"
_PRIOR = "not there in this form: dataset.prior_prediction on clips of the class keeps what the model knows"
_AUGMENTED = "set dataset.jitter_brightness, jitter_contrast, jitter_saturation, jitter_hue or rotate_degrees"
_STORE = ("encode.store", True)

RULES: dict[str, Rule] = {
    "job": rules.without_meaning("the trainer's own kind of job"),
    "meta.*": rules.without_meaning("a note in its files"),
    "config.name": _output,
    "training_folder": _output,
    "type": rules.without_meaning("all models are trained by the same program"),
    "name": rules.without_meaning("config.name is the run's"),
    "device": rules.without_meaning("the GPU of the command, or those of torchrun"),
    "sqlite_db_path": rules.without_meaning("of its page; `reelworks ui` needs none"),
    "performance_log_every": rules.without_meaning("times are always logged"),
    "log_dir": rules.without_meaning("TensorBoard is written into the run's folder"),
    "torch_profiler": rules.without_meaning("`reelworks tune` measures"),
    "trigger_word": _trigger,
    "training_seed": _seed,
    "first_sample.*": rules.without_meaning("`reelworks generate` shows the untrained model"),
    "guidance.*": rules.impossible(_OTHER_LOSS),
    "embedding.*": rules.impossible("textual inversions are not trained: train a LoRA"),
    "decorator.*": rules.impossible("decorators are not trained: train a LoRA"),
    "adapter.*": rules.impossible(_ADAPTER),
    "do_lorm": rules.impossible("LoRM is not there"),
    "lorm_extract_mode": rules.without_meaning("it belongs to LoRM"),
    "lorm_extract_mode_param": rules.without_meaning("it belongs to LoRM"),
    "process.*": rules.impossible("a recipe is one run: put each process into a file of its own, and import that", ()),
    # network
    "network": rules.impossible("give it the rank, as in linear: 16"),
    "network.type": _network,
    "network.rank": _rank,
    "network.linear": _rank,
    "network.alpha": _alpha,
    "network.linear_alpha": _alpha,
    "network.conv": rules.impossible("convolutions are not adapted"),
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
    "network.lokr_full_rank": _part_of("network.type"),
    "network.lokr_factor": _factor,
    "network.old_lokr_format": rules.without_meaning("exports.formats decides on the file"),
    "network.split_multistage_loras": rules.without_meaning("each network of a pair has its own file"),
    "network.layer_offloading": rules.impossible("the LoRA stays on the GPU"),
    "network.pretrained_lora_path": _from_lora,
    "network.all_layers": rules.impossible("norms and embeddings are not trained with a LoRA"),
    # save
    "save.save_every": _interval("checkpoints.every_steps"),
    "save.dtype": rules.by_name("exports.dtype", _FILE_DTYPES, "bfloat16", "this dtype is not there"),
    "save.max_step_saves_to_keep": rules.to("checkpoints.keep_last"),
    "save.save_format": rules.without_meaning("exports.formats decides on the file"),
    "save.push_to_hub": rules.impossible("files are not sent to the hub: use `hf upload`"),
    "save.hf_repo_id": rules.without_meaning("files are not sent to the hub"),
    "save.hf_private": rules.without_meaning("files are not sent to the hub"),
    # logging
    "logging.log_every": rules.without_meaning("TensorBoard has every step"),
    "logging.verbose": rules.without_meaning("train.log_every decides"),
    "logging.use_wandb": _reported,
    "logging.use_ui_logger": rules.without_meaning("`reelworks ui` shows any run"),
    "logging.project_name": _part_of("logging.use_wandb"),
    "logging.run_name": _part_of("logging.use_wandb"),
    # datasets
    "datasets.*.folder_path": _folder,
    "datasets.*.dataset_path": _folder,
    "datasets.*.type": rules.only(("image",), "pictures and videos", "this kind of dataset is not there"),
    "datasets.*.batch_size": rules.impossible("batch sizes belong to [[bucket]]s: set batch_size there"),
    "datasets.*.default_caption": _default_caption,
    "datasets.*.trigger_word": _trigger,
    "datasets.*.caption_ext": _extension,
    "datasets.*.caption_type": _extension,
    "datasets.*.random_triggers": rules.impossible("write the words into the captions"),
    "datasets.*.random_triggers_max": rules.without_meaning("it belongs to random_triggers"),
    "datasets.*.resolution": _resolution,
    "datasets.*.num_repeats": _repeats,
    "datasets.*.num_frames": _num_frames,
    "datasets.*.auto_frame_count": lambda value, draft: (
        (Fate.TAKEN, "[[bucket]] num_frames: each clip goes to the longest that it fills")
        if value
        else (Fate.DEFAULT, "off")
    ),
    "datasets.*.shrink_video_to_frames": _part_of("num_frames"),
    "datasets.*.trim_auto_frame_count_tail": rules.without_meaning("the rest of a clip is cut away"),
    "datasets.*.fps": _rate,
    "datasets.*.do_i2v": _first_frame,
    "datasets.*.do_audio": _sound,
    "datasets.*.audio_preserve_pitch": rules.without_meaning("sound is not stretched"),
    "datasets.*.audio_normalize": rules.impossible("sound keeps its volume"),
    "datasets.*.caption_dropout_rate": _dropout,
    "datasets.*.token_dropout_rate": rules.to("dataset.*.tag_dropout", none=0.0),
    "datasets.*.shuffle_tokens": rules.to("dataset.*.shuffle_tags", none=False),
    "datasets.*.keep_tokens": rules.to("dataset.*.keep_tags", none=0),
    "datasets.*.use_short_captions": rules.impossible("captions.txt has one caption: write the short one there"),
    "datasets.*.replacements": rules.impossible("change the caption files"),
    "datasets.*.flip_x": _mirrored,
    "datasets.*.flip_y": rules.impossible("clips are not turned upside down"),
    "datasets.*.random_crop": _any_flag("random_crop", "data.crop", "random"),
    "datasets.*.random_scale": rules.impossible('sizes are not drawn; data.crop = "random" draws the part of a frame'),
    "datasets.*.square_crop": _square,
    "datasets.*.scale": rules.only(
        (1, 1.0), "as the files are", "clips are not resized before buckets: resize the files"
    ),
    "datasets.*.buckets": rules.only((True,), "always", "clips always go to buckets"),
    "datasets.*.bucket_tolerance": rules.without_meaning("the model fixes the multiple, there too"),
    "datasets.*.is_reg": _regularises,
    "datasets.*.prior_reg": rules.to("dataset.*.prior_prediction", none=False),
    "datasets.*.network_weight": rules.only((1, 1.0), "1", "the LoRA has the same weight for all clips"),
    "datasets.*.loss_multiplier": rules.only((1, 1.0), "1", "set dataset.repeats instead: 2 for twice the weight"),
    "datasets.*.augments": rules.impossible(_AUGMENTED),
    "datasets.*.augmentations": rules.impossible(_AUGMENTED),
    "datasets.*.augmentations.*": rules.impossible(_AUGMENTED, ()),
    "datasets.*.shuffle_augmentations": rules.without_meaning("each draw is independent"),
    "datasets.*.control_path": _control,
    **{f"datasets.*.control_path_{number}": _control for number in (1, 2, 3)},
    "datasets.*.control_from_same_folder": rules.impossible("give a folder of sources, with the names of the clips"),
    "datasets.*.num_controls_from_same_folder": rules.without_meaning("it belongs to control_from_same_folder"),
    "datasets.*.control_transparent_color": rules.without_meaning("data.alpha_color is the background of all pictures"),
    "datasets.*.full_size_control_images": rules.without_meaning("sources have the size of their clip's bucket"),
    "datasets.*.replay_transforms": rules.without_meaning("sources are always cropped and flipped with their clip"),
    "datasets.*.inpaint_path": rules.impossible("set dataset.mask for a model that takes one (VACE)"),
    "datasets.*.alpha_mask": rules.impossible(
        "write the alpha channels as pictures into a folder, and set dataset.loss_mask"
    ),
    "datasets.*.mask_path": rules.to("dataset.*.loss_mask", none=NONE),
    "datasets.*.invert_mask": rules.impossible("invert the files of dataset.loss_mask"),
    "datasets.*.mask_min_value": rules.impossible("black areas of dataset.loss_mask do not count: make them grey"),
    "datasets.*.unconditional_path": rules.impossible(_OTHER_LOSS),
    "datasets.*.guidance_type": rules.without_meaning("it belongs to unconditional_path"),
    "datasets.*.poi": rules.impossible("it is no longer there in ai-toolkit either"),
    "datasets.*.clip_image_path": rules.impossible(_ADAPTER),
    "datasets.*.clip_image_from_same_folder": rules.impossible(_ADAPTER),
    "datasets.*.clip_image_augmentations": rules.impossible(_ADAPTER),
    "datasets.*.clip_image_shuffle_augmentations": rules.without_meaning("it belongs to clip_image_path"),
    "datasets.*.controls": rules.impossible("make the control pictures once, and set dataset.control"),
    "datasets.*.extra_values": rules.impossible("it is not there"),
    "datasets.*.standardize_images": rules.impossible("pixels are normalised as the autoencoder expects"),
    "datasets.*.cache_latents": _any_flag("cache_latents", *_STORE),
    "datasets.*.cache_latents_to_disk": _any_flag("cache_latents_to_disk", *_STORE),
    "datasets.*.cache_text_embeddings": _any_flag("cache_text_embeddings", *_STORE),
    "datasets.*.cache_tensors_to_disk": rules.without_meaning(
        "frames are decoded from the files, or stored as latents"
    ),
    "datasets.*.cache_clip_vision_to_disk": rules.without_meaning("encode.store stores these too"),
    "datasets.*.load_image_when_caching_latents": rules.without_meaning("no step needs the pixels then"),
    "datasets.*.num_workers": lambda value, draft: (
        (Fate.TAKEN, draft.set("data.num_workers", value))
        if draft.numbers[0] == 0
        else (Fate.NO_MEANING, "that of the first dataset")
    ),
    "datasets.*.prefetch_factor": rules.without_meaning("data.prefetch_bytes decides"),
    "datasets.*.cache_latents_num_workers": rules.without_meaning("data.num_workers decides"),
    "datasets.*.fast_image_size": rules.without_meaning("sizes are read exactly"),
    "datasets.*.debug": rules.without_meaning("`reelworks contact-sheet` shows the frames"),
    "datasets.*.diff_output_preservation": rules.impossible(_PRIOR),
    "datasets.*.diff_output_preservation_class": rules.without_meaning("it belongs to diff_output_preservation"),
    # train
    "train.steps": _steps,
    "train.lr": _learning_rate,
    "train.unet_lr": _own_rate,
    "train.text_encoder_lr": rules.without_meaning("text encoders are not trained"),
    "train.refiner_lr": rules.without_meaning("there is no refiner"),
    "train.embedding_lr": rules.without_meaning("textual inversions are not trained"),
    "train.adapter_lr": rules.without_meaning("adapters are not trained"),
    "train.optimizer": _optimizer,
    "train.optimizer_params.weight_decay": rules.to("train.weight_decay"),
    "train.optimizer_params.betas": rules.to("train.betas"),
    "train.optimizer_params.eps": rules.to("train.eps"),
    "train.optimizer_params.*": rules.impossible("the optimizer has no such setting here: leave it out"),
    "train.optimizer_params": rules.without_meaning("empty"),
    "train.lr_scheduler": _schedule,
    "train.lr_scheduler_params.num_warmup_steps": rules.to("train.warmup_steps", none=0),
    "train.lr_scheduler_params.warmup_steps": rules.to("train.warmup_steps", none=0),
    "train.lr_scheduler_params.eta_min": rules.to("train.final_learning_rate", none=0.0),
    "train.lr_scheduler_params.T_max": rules.without_meaning("the rate falls until train.max_steps"),
    "train.lr_scheduler_params.total_iters": rules.without_meaning("the rate falls until train.max_steps"),
    "train.lr_scheduler_params.*": rules.impossible("the schedule has no such setting here: leave it out"),
    "train.lr_scheduler_params": rules.without_meaning("empty"),
    "train.batch_size": rules.to("buckets.batch_size"),
    "train.gradient_accumulation": _accumulation,
    "train.gradient_accumulation_steps": _accumulation,
    "train.dtype": _dtype,
    "train.gradient_checkpointing": rules.to("model.gradient_checkpointing", none=False),
    "train.max_grad_norm": rules.to("train.max_grad_norm", none=NONE),
    "train.ema_config": _average,
    "train.ema_config.use_ema": _average,
    "train.ema_config.ema_decay": _average,
    "train.ema_config.use_feedback": rules.impossible("the average does not change the weights"),
    "train.ema_config.param_multiplier": rules.only(
        (1, 1.0), "1", "weights are not multiplied: set train.weight_decay"
    ),
    "train.noise_scheduler": rules.without_meaning("the model's objective decides"),
    "train.num_train_timesteps": rules.only((1000,), "1000", "there are 1000 timesteps"),
    "train.timestep_type": _timesteps,
    "train.linear_timesteps": _flat_timesteps,
    "train.linear_timesteps2": _flat_timesteps,
    "train.next_sample_timesteps": rules.without_meaning("all timesteps are trained"),
    "train.content_or_style": _emphasis,
    "train.min_denoising_steps": _limit,
    "train.max_denoising_steps": _limit,
    "train.loss_type": _loss,
    "train.snr_gamma": _snr,
    "train.min_snr_gamma": _snr,
    "train.do_guidance_loss": _guidance,
    "train.guidance_loss_target": _part_of("train.do_guidance_loss"),
    "train.do_guidance_loss_cfg_zero": _part_of("train.do_guidance_loss"),
    "train.guidance_loss_schedule": rules.only(("constant",), "constant", "the scale is the same at all timesteps"),
    "train.unconditional_prompt": rules.only(("", None), "the empty caption", "the empty caption is the other one"),
    "train.do_differential_guidance": rules.impossible(_OTHER_LOSS),
    "train.differential_guidance_scale": rules.without_meaning("it belongs to do_differential_guidance"),
    "train.bypass_guidance_embedding": rules.impossible(
        "the guidance that the network is given in training is that of the release; the key cannot be switched off"
    ),
    "train.train_unet": rules.only((True,), "the denoiser is trained", "the denoiser is what is trained"),
    "train.train_text_encoder": rules.impossible(_TEXTS),
    "train.train_refiner": rules.without_meaning("there is no refiner"),
    "train.prompt_dropout_prob": lambda value, draft: (
        (Fate.TAKEN, draft.set("objective.caption_dropout", float(value))) if value else (Fate.DEFAULT, "off")
    ),
    "train.cache_text_embeddings": lambda value, draft: (
        (Fate.TAKEN, draft.set(*_STORE)) if value else (Fate.DEFAULT, "off")
    ),
    "train.unload_text_encoder": rules.without_meaning(
        "encode.store leaves it out of memory; captions are embedded once either way, and not replaced by the trigger word"
    ),
    "train.disable_sampling": _never,
    "train.skip_first_sample": rules.without_meaning("previews begin after samples.every_steps"),
    "train.force_first_sample": rules.without_meaning("previews begin after samples.every_steps"),
    "train.attention_backend": _attention,
    "train.xformers": rules.without_meaning("model.attention decides"),
    "train.sdp": rules.without_meaning("model.attention decides"),
    "train.start_step": rules.impossible("a run continues where its checkpoint is: give `train --load`"),
    "train.reg_weight": rules.only((1, 1.0), "1", "all clips have the same weight: set dataset.repeats"),
    "train.switch_boundary_every": rules.without_meaning("each step trains one of both networks"),
    "train.diff_output_preservation": rules.impossible(_PRIOR),
    "train.diff_output_preservation_multiplier": rules.without_meaning("it belongs to diff_output_preservation"),
    "train.diff_output_preservation_class": rules.without_meaning("it belongs to diff_output_preservation"),
    "train.blank_prompt_preservation": rules.impossible(_PRIOR),
    "train.blank_prompt_preservation_multiplier": rules.without_meaning("it belongs to blank_prompt_preservation"),
    "train.inverted_mask_prior": rules.impossible(_PRIOR),
    "train.inverted_mask_prior_multiplier": rules.without_meaning("it belongs to inverted_mask_prior"),
    "train.do_prior_divergence": rules.impossible(_OTHER_LOSS),
    "train.negative_prompt": rules.impossible(_OTHER_LOSS),
    "train.max_negative_prompts": rules.without_meaning("it belongs to negative_prompt"),
    "train.short_and_long_captions": rules.impossible(
        'write both captions into a file, a line each, and set captions = "lines"'
    ),
    "train.short_and_long_captions_encoder_split": rules.impossible("both text encoders get the same caption"),
    "train.single_item_batching": rules.impossible("set train.gradient_accumulation_steps, and a batch size of 1"),
    "train.merge_network_on_save": rules.impossible("merge the LoRA into weights with another program"),
    "train.merge_network_on_save_strength": rules.without_meaning("it belongs to merge_network_on_save"),
    "train.audio_loss_multiplier": lambda value, draft: (
        (Fate.TAKEN, draft.set("sound.loss_weight", float(value)))
        if draft.get("sound.name")
        else (Fate.NO_MEANING, "no sound")
    ),
    "train.max_loss_debug": rules.without_meaning("train.spikes reports steps with a high loss"),
    "train.max_loss": rules.impossible('a loss is not cut: train.spikes = "skip" leaves such steps out'),
    "train.validation_config.*": rules.impossible("set validation.split, and keep clips back for it", ()),
    "train.cfg_rescale": rules.without_meaning("it belongs to do_cfg"),
    "train.cfg_scale": rules.without_meaning("it belongs to do_cfg"),
    "train.max_cfg_scale": rules.without_meaning("it belongs to do_cfg"),
    "train.show_turbo_outputs": rules.without_meaning("it belongs to train_turbo"),
    "train.do_paramiter_swapping": rules.impossible(
        "all weights are trained in each step: parallel.offload saves memory"
    ),
    "train.paramiter_swapping_factor": rules.without_meaning("it belongs to do_paramiter_swapping"),
    **{
        f"train.{key}": rules.only(values, "off", _NOISE)
        for key, values in {
            "noise_offset": (0, 0.0, None),
            "noise_multiplier": (1, 1.0),
            "target_noise_multiplier": (1, 1.0),
            "random_noise_multiplier": (0, 0.0),
            "random_noise_shift": (0, 0.0),
            "img_multiplier": (1, 1.0),
            "noisy_latent_multiplier": (1, 1.0),
            "latent_multiplier": (1, 1.0),
            "optimal_noise_pairing_samples": (1,),
            "pred_scaler": (1, 1.0),
        }.items()
    },
    **{
        f"train.{key}": rules.impossible(_NOISE)
        for key in (
            *(
                "dynamic_noise_offset",
                "do_signal_correction_noise",
                "do_batch_noise_correction",
                "do_signal_amplification",
            ),
            *("force_consistent_noise", "blended_blur_noise", "match_noise_norm", "adaptive_scaling_factor"),
            *("standardize_images", "standardize_latents", "weight_jitter", "free_u", "prompt_saturation_chance"),
        )
    },
    **{
        f"train.{key}": rules.without_meaning("its switch decides")
        for key in (
            *("signal_correction_noise_scale", "batch_noise_correction_scale", "signal_amplification_strength"),
            *("correct_pred_norm_multiplier", "target_norm_std_value", "latent_feature_loss_weight"),
            *("diffusion_feature_extractor_weight", "adapter_assist_type", "t0_velocity_equiv_weight"),
            "do_fft_velocity_equiv_weight",
        )
    },
    **{
        f"train.{key}": rules.impossible(_OTHER_LOSS)
        for key in (
            *("train_turbo", "learnable_snr_gos", "do_cfg", "do_random_cfg", "correct_pred_norm", "target_norm_std"),
            *("t0_loss_target", "do_fft_loss", "latent_feature_extractor_path", "diffusion_feature_extractor_path"),
            *("adapter_assist_name_or_path", "match_adapter_assist", "match_adapter_chance", "do_blank_stabilization"),
        )
    },
    "train.loss_target": rules.only(("noise",), "the objective's own", _OTHER_LOSS),
    # model
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
    "model.unconditional_lora_path": rules.impossible(_OTHER_LOSS),
    "model.latent_space_version": rules.without_meaning("stored latents are found by their request"),
    "model.use_flux_cfg": rules.impossible(_OTHER_LOSS),
    "model.use_text_encoder_1": rules.only((True,), "all text encoders", "all text encoders are used"),
    "model.use_text_encoder_2": rules.only((True,), "all text encoders", "all text encoders are used"),
    "model.experimental_xl": rules.without_meaning("the weights decide"),
    "model.text_encoder_bits": rules.only((16,), "16", "set encode.store, which needs no text encoder in memory"),
    "model.quantize": _quantised,
    "model.qtype": _part_of("model.quantize"),
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
    "model.vae_dtype": rules.by_name("autoencoder.dtype", _DTYPES, "float32", "this dtype is not there"),
    "model.te_device": rules.by_name(
        "text_encoder.device", {"cpu": "cpu"}, "auto", "it is on the model's device, or on the CPU"
    ),
    "model.te_dtype": rules.without_meaning("text encoders compute as in their release"),
    # sample
    "sample.prompts": _previews,
    "sample.samples.*.prompt": lambda value, draft: (
        (Fate.TAKEN, "samples.prompts") if draft.get("samples.prompts") else _previews(value, draft)
    ),
    "sample.samples": rules.without_meaning("empty"),
    "sample.sample_every": _if_previewed(_interval("samples.every_steps")),
    "sample.sample_start_step": rules.only((0,), "from the start", "previews begin after samples.every_steps"),
    "sample.width": _preview_side("samples.width"),
    "sample.height": _preview_side("samples.height"),
    "sample.num_frames": _if_previewed(_preview_frames),
    "sample.fps": _if_previewed(
        lambda value, draft: (
            (Fate.TAKEN, draft.set("samples.fps", float(value)))
            if value and not _pictures_only(draft)
            else (Fate.NO_MEANING, "pictures")
        )
    ),
    "sample.guidance_scale": _if_previewed(
        lambda value, draft: (Fate.TAKEN, draft.set("samples.guidance_scale", max(float(value), 1.0)))
    ),
    "sample.sample_steps": _if_previewed(rules.to("samples.num_inference_steps")),
    "sample.sampler": rules.without_meaning("the objective's sampler"),
    "sample.neg": rules.impossible("previews have no negative prompt: the empty caption takes its place"),
    "sample.seed": rules.without_meaning("previews have the same noise each time"),
    "sample.walk_seed": rules.without_meaning("each prompt has its own noise"),
    "sample.network_multiplier": rules.only((1, 1.0), "1", "the LoRA has its full strength"),
    "sample.guidance_rescale": rules.only((0, 0.0), "off", "guidance is not rescaled"),
    "sample.format": rules.without_meaning("pictures are PNG, clips are MP4"),
    "sample.ext": rules.without_meaning("pictures are PNG, clips are MP4"),
    "sample.adapter_conditioning_scale": rules.without_meaning("there is no adapter"),
    "sample.refiner_start_at": rules.without_meaning("there is no refiner"),
    "sample.extra_values": rules.impossible("it is not there"),
    "sample.do_cfg_norm": rules.without_meaning("guidance is that of the model's pipeline"),
    **{f"sample.samples.*.{key}": _preview_picture for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")},
    "sample.samples.*.*": rules.impossible("all previews have the same settings: leave it out", (None,)),
}
# A whole table may be null.
RULES |= {name[:-2]: rule for name, rule in RULES.items() if name.endswith(".*") and name[:-2] not in RULES}
