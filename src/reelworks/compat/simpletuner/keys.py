"""Translations of SimpleTuner's options, and of the settings of its data backends, to recipe keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reelworks.compat import datasets, rules
from reelworks.compat.draft import FormerSettings, ImportDraft
from reelworks.compat.rules import Fate, Outcome, Rule
from reelworks.compat.simpletuner import models, optimizers, options
from reelworks.core.toml_none import WORD as NONE

FRAMES = 125  # of a video backend without num_frames: 5 seconds
_DTYPES = {**dict.fromkeys(("bf16", "fp8"), "bfloat16"), **dict.fromkeys(("no", "fp32"), "float32")}
_CROPS = {**dict.fromkeys(("center", "centre"), "center"), "random": "random"}
_SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear"}
_FALLING = {"cosine": "cosine", "sine": "cosine", "cosine_with_restarts": "cosine", "polynomial": "linear"}
_MAIN_DEFAULTS: dict[str, Any] = {
    "train_batch_size": 4,
    "learning_rate": 4e-7,
    "lr_scheduler": "constant_with_warmup",
    "optimizer": "adamw_bf16",
    "max_grad_norm": 2.0,
    "gradient_checkpointing": True,
    "mixed_precision": "bf16",
    "use_ema": False,
    "caption_dropout_probability": 0.1,
    "checkpoint_step_interval": 500,
    "checkpoints_total_limit": 5,
    "output_dir": "simpletuner-results",
    "model_type": "full",
}
_LORA_DEFAULTS: dict[str, Any] = {"lora_type": "standard", "lora_rank": 16, "lora_dropout": 0.1}
_PREVIEW_DEFAULTS: dict[str, Any] = {
    **{"validation_step_interval": 100, "validation_guidance": 7.5, "validation_num_inference_steps": 30},
    "validation_resolution": "256",
}
_DATA_DEFAULTS: dict[str, Any] = {
    **{"resolution": None, "caption_strategy": None, "instance_data_dir": None, "crop": False, "repeats": 0},
    "minimum_image_size": None,
}
FIRST = (
    *(
        "optimizer",
        "model_type",
        "lora_type",
        "lycoris.algo",
        "lycoris.linear_dim",
        "validation_prompt",
        "user_prompt_library",
    ),
    *("data.*.dataset_name", "data.*.instance_data_dir", "data.*.id"),
)


def defaults(settings: FormerSettings) -> dict[str, Any]:
    """Return the defaults that mean something for this config."""
    found = dict(_MAIN_DEFAULTS)
    if settings.get("model_type") == "lora":
        found |= _LORA_DEFAULTS
    if any(settings.get(key) for key in ("validation_prompt", "user_prompt_library")):
        found |= _PREVIEW_DEFAULTS
    if not settings.get("max_train_steps"):
        found["num_train_epochs"] = 1
    if models.family(settings).startswith("ltx"):
        found["ltx_i2v_prob"] = 0.1
    if not settings.count("data"):
        found["data_backend_config"] = None
    for number in range(settings.count("data")):
        found |= {f"data.{number}.{key}": value for key, value in _DATA_DEFAULTS.items()}
        if is_video(settings, number):
            found[f"data.{number}.video.num_frames"] = FRAMES
    return found


def is_flow(draft: ImportDraft) -> bool:
    """Whether the model is trained by rectified flow."""
    return bool(draft.get("objective.name", "rectified-flow") == "rectified-flow")


def is_video(settings: FormerSettings, number: int) -> bool:
    """Whether a data backend holds videos."""
    return bool(settings.get(f"data.{number}.dataset_type") == "video")


def option(settings: FormerSettings, number: int, key: str, default: Any = None) -> Any:
    """Return a setting of a data backend, or else the option of the same name for all."""
    own = settings.get(f"data.{number}.{key}")
    return settings.get(key, default) if own is None else own


def megapixels(settings: FormerSettings, number: int, value: Any) -> float:
    """Return a size of a data backend in megapixels, where its resolution is an area."""
    number_ = float(value)
    is_edge = option(settings, number, "resolution_type", "pixel_area") == "pixel_area"
    return number_ * number_ / 1e6 if is_edge else number_


def side_of(settings: FormerSettings, number: int) -> int:
    """Return the side of the square that has as many pixels as its clips, or of a "pixel" resolution the shorter side."""
    value = option(settings, number, "resolution", 1024)
    if isinstance(value, bool) or not float(value) > 0:
        raise ValueError(value)
    if option(settings, number, "resolution_type", "pixel_area") == "pixel":
        return datasets.side_of(value)
    multiple = models.bucket_multiple(settings)
    edge = math.sqrt(megapixels(settings, number, value) * 1e6)
    return datasets.side_of(max(round(int(edge) / multiple), 1) * multiple)


def frames_of(settings: FormerSettings, number: int) -> int:
    """Return the number of frames of a data backend's clips."""
    if not is_video(settings, number):
        return 1
    return models.frames_there(settings, int(settings.get(f"data.{number}.video.num_frames", FRAMES)))


def _resolution(value: Any, draft: ImportDraft) -> Outcome:
    settings, number = draft.settings, draft.numbers[0]
    remark = set_buckets(draft)
    told = f"{remark}; smaller clips are enlarged, as there"
    kinds = {(is_video(settings, n), side_of(settings, n)) for n in range(settings.count("data"))}
    if len(kinds) > len({video for video, _ in kinds}):
        return Fate.NOT_POSSIBLE, (
            f"{told}; sizes are common to all datasets here, and each use of a clip draws one of them: two backends of the same "
            "folder are trained as there on average"
        )
    shorter = option(settings, number, "resolution_type", "pixel_area") == "pixel"
    if shorter and not crops_square(settings, number):
        return Fate.NOT_POSSIBLE, f"{told}; the shorter side is fixed there, and the area here"
    return Fate.TAKEN, told


def set_buckets(draft: ImportDraft) -> str:
    """Set the buckets of all data backends, videos apart from pictures, and return the assignments as text."""
    settings = draft.settings
    found: dict[tuple[bool, str], set[int]] = {}
    for number in range(settings.count("data")):
        video = is_video(settings, number) and not datasets.preset_of(draft).config.pictures_only
        lines = video and option(settings, number, "resolution_type", "pixel_area") == "pixel"
        name = f"{side_of(settings, number)}{'p' if lines else 'px'}"
        frames = _lengths(draft, number) if video else {1}
        found.setdefault((video, name), set()).update(frames)
    first = 0
    for kind in (True, False):
        names = sorted((name for video, name in found if video is kind), key=lambda name: -_pixels(name))
        lengths = sorted({length for (video, _), own in found.items() if video is kind for length in own})
        if names:
            datasets.set_sizes(draft, names, lengths, each=True, first=first)
        first += len(names)
    draft.set("buckets.upscale", True, "smaller clips are trained too")
    return ", ".join(f'[[bucket]] resolution = "{name}"' for _, name in sorted(found))


def _pixels(name: str) -> float:
    side = int(re.sub(r"\D", "", name))
    return side * side * (16 / 9 if name.endswith("p") else 1)


def _lengths(draft: ImportDraft, number: int) -> set[int]:
    settings = draft.settings
    most = frames_of(settings, number)
    if settings.get(f"data.{number}.video.bucket_strategy") == "resolution_frames":
        return set(datasets.ladder(draft, most))
    return {datasets.frames_here(draft, most)}


def crops_square(settings: FormerSettings, number: int) -> bool:
    """Whether a data backend crops its clips to squares."""
    crops = settings.get(f"data.{number}.crop") is True
    return crops and settings.get(f"data.{number}.crop_aspect", "square") == "square"


def _folder(value: Any, draft: ImportDraft) -> Outcome:
    number, settings = draft.numbers[0], draft.settings
    kind = settings.get(f"data.{number}.type", "local")
    if isinstance(value, str) and value.strip():
        bucket = settings.get(f"data.{number}.aws_bucket_name")
        if kind == "aws" and isinstance(bucket, str):
            value = f"s3://{bucket}/{value.strip('/')}"
        return Fate.TAKEN, datasets.place(draft, number, value)
    if kind == "huggingface":
        return Fate.DEFAULT, "dataset_name"
    return Fate.TO_FILL_IN, f"a folder is needed: {draft.get(f'dataset.{number}.path')} stands in its place"


def _hub(value: Any, draft: ImportDraft) -> Outcome:
    """Name a folder for a dataset of the hub, whose pictures lie in tables there."""
    number = draft.numbers[0]
    remark = datasets.place(draft, number, str(value).rpartition("/")[2] or "clips")
    return (
        Fate.TO_FILL_IN,
        f"pictures in tables of the hub are not read: save those of {value} into a folder, with text files; {remark}",
    )


def _identity(value: Any, draft: ImportDraft) -> Outcome:
    """Name the dataset as its backend, if its path does not come with a name that another one has."""
    number, settings = draft.numbers[0], draft.settings
    taken = [settings.get(f"data.{other}.id") for other in range(settings.count("data"))]
    if not isinstance(value, str) or not value.strip() or taken.count(value) > 1:
        return Fate.NO_MEANING, f"dataset.{number}.name"
    return Fate.TAKEN, draft.set(f"dataset.{number}.name", value)


def _captions(value: Any, draft: ImportDraft) -> Outcome:
    """Convert where captions come from: text files, one prompt for all, or what is not read here."""
    number, settings = draft.numbers[0], draft.settings
    strategy = option(settings, number, "caption_strategy", "filename")
    prompt = option(settings, number, "instance_prompt")
    prompt = prompt if isinstance(prompt, str) else ""
    if strategy == "instanceprompt" or option(settings, number, "only_instance_prompt") is True:
        draft.set(f"dataset.{number}.missing_caption", "")
        remark = draft.set(f"dataset.{number}.caption", prompt.replace("{", "{{").replace("}", "}}") or "{text}")
        return Fate.TAKEN, f"{remark} for all clips"
    if option(settings, number, "prepend_instance_prompt") is True and prompt:
        datasets.adds_word(draft, number, prompt)
    if strategy == "textfile":
        if option(settings, number, "disable_multiline_split") is True:
            return Fate.DEFAULT, "captions are read from text files beside the clips"
        return Fate.TAKEN, f"{draft.set(f'dataset.{number}.captions', 'lines')}: each line of a text file is a caption"
    draft.set(f"dataset.{number}.missing_caption", "", "no caption")
    sources = {"filename": "names of files", "parquet": "tables", "csv": "tables", "huggingface": "tables of the hub"}
    told = f"captions are not read from {sources.get(strategy, 'there')}"
    return (
        Fate.TO_FILL_IN,
        f"{told}: write text files beside the clips, or a list (.csv, .parquet) with the columns path and text",
    )


def _limits(value: Any, draft: ImportDraft) -> Outcome:
    """Set the filter of a dataset from its smallest size, its aspect ratios and its frames."""
    number, settings = draft.numbers[0], draft.settings
    terms = list(_terms(settings, number))
    if not terms:
        draft.remove(f"dataset.{number}.filter")
        return Fate.DEFAULT, "no limit"
    return Fate.TAKEN, draft.set(f"dataset.{number}.filter", " and ".join(terms))


def _terms(settings: FormerSettings, number: int) -> Iterator[str]:
    least = option(settings, number, "minimum_image_size")
    if is_given(least):
        edge = int(least)
        if option(settings, number, "resolution_type", "pixel_area") != "pixel":
            pixels = round(megapixels(settings, number, least) * 1e6)
            edge = int(math.sqrt(pixels)) if crops_square(settings, number) else 0
            yield f"width * height >= {pixels}"
        if edge:
            yield f"width >= {edge} and height >= {edge}"
    for key, sign in (("minimum_aspect_ratio", ">="), ("maximum_aspect_ratio", "<=")):
        if is_given(ratio := settings.get(f"data.{number}.{key}")):
            yield f"width {sign} {float(ratio):g} * height"
    if is_video(settings, number):
        frames = settings.get(f"data.{number}.video.num_frames", FRAMES)
        fewest = settings.get(f"data.{number}.video.min_frames", frames)
        yield f"num_frames >= {models.frames_there(settings, int(fewest))}"
        if is_given(most := settings.get(f"data.{number}.video.max_frames")):
            yield f"num_frames <= {_most_frames(settings, int(most))}"


def _most_frames(settings: FormerSettings, most: int) -> int:
    """Return the frames of the longest file that is shortened to at most this many."""
    longest = most
    while models.frames_there(settings, longest + 1) <= most and longest < most + 8:
        longest += 1
    return longest


def is_given(value: Any) -> bool:
    """Whether a value is a number above 0, and no other thing that a stranger wrote in its place."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _frames(value: Any, draft: ImportDraft) -> Outcome:
    settings, number = draft.settings, draft.numbers[0]
    _limits(value, draft)
    if datasets.preset_of(draft).config.pictures_only:
        return Fate.NOT_POSSIBLE, f"{draft.get('model.name')} takes pictures only"
    draft.set("data.clip_start", "start", "longer clips begin with their first frame there")
    there, here = frames_of(settings, number), datasets.frames_here(draft, frames_of(settings, number))
    told = f"[[bucket]] num_frames = {here}"
    if here != there:
        return Fate.NOT_POSSIBLE, f"{datasets.geometry_of(draft).frame_words}: {told}"
    return Fate.TAKEN, told if there == value else f"{told}, to which it is shortened there too"


def _repeats(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "once in an epoch"
    return (
        Fate.TAKEN,
        f"{draft.set(f'dataset.{draft.numbers[0]}.repeats', int(value) + 1)}: repeats are added to the first time there",
    )


def _crop(value: Any, draft: ImportDraft) -> Outcome:
    settings = draft.settings
    shapes = [crops_square(settings, number) for number in range(settings.count("data"))]
    if not any(shapes):
        return Fate.DEFAULT, "clips keep their shape"
    if all(shapes):
        draft.set("buckets.max_crop", 0.95)
        return Fate.TAKEN, draft.set("buckets.aspect_ratios", ["1:1"])
    return (
        Fate.NOT_POSSIBLE,
        'shapes are common to all datasets here: clips keep theirs; buckets.aspect_ratios = ["1:1"] crops all',
    )


def _crop_style(value: Any, draft: ImportDraft) -> Outcome:
    settings = draft.settings
    if not any(settings.get(f"data.{number}.crop") for number in range(settings.count("data"))):
        return Fate.NO_MEANING, "nothing but the rest beside a bucket is cropped"
    if value in _CROPS:
        return Fate.TAKEN, draft.set("data.crop", _CROPS[value])
    nearest = "top" if value == "corner" else "center"
    return Fate.NOT_POSSIBLE, f"{draft.set('data.crop', nearest)} replaces it"


def _crop_shapes(value: Any, draft: ImportDraft) -> Outcome:
    number, settings = draft.numbers[0], draft.settings
    listed = settings.get(f"data.{number}.crop_aspect_buckets")
    ratios: list[Any] = list(listed) if isinstance(listed, list) else []
    ratios = [each.get("aspect") if isinstance(each, Mapping) else each for each in ratios]
    drawn = settings.get(f"data.{number}.crop_aspect")
    if settings.get(f"data.{number}.crop") is not True or drawn not in ("closest", "random"):
        return Fate.NO_MEANING, "crop_aspect decides"
    draft.set("buckets.max_crop", 0.95)
    remark = draft.set("buckets.aspect_ratios", [f"{float(ratio):g}:1" for ratio in ratios if is_given(ratio)])
    if drawn == "closest":
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"{remark}; each clip has the nearest shape, and none that is drawn"


def _crop_aspect(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get(f"data.{draft.numbers[0]}.crop") is not True:
        return Fate.NO_MEANING, "nothing but the rest beside a bucket is cropped"
    if value == "square":
        return _crop(value, draft)
    if value == "preserve":
        return Fate.DEFAULT, "clips keep their shape"
    return Fate.TAKEN, "buckets.aspect_ratios"


def _companion(value: Any, draft: ImportDraft) -> Outcome:
    """Give the folders of conditioning backends to the model as what it takes: sources, a control, or masks of the loss."""
    number, settings = draft.numbers[0], draft.settings
    wanted = value if isinstance(value, list) else [value]
    found: dict[str, list[str]] = {"source": [], "control": [], "loss_mask": []}
    takes = datasets.conditioning_of(draft).takes
    for other in range(settings.count("conditioning")):
        folder = settings.get(f"conditioning.{other}.instance_data_dir")
        if settings.get(f"conditioning.{other}.id") not in wanted or not isinstance(folder, str) or not folder:
            continue
        if settings.get(f"conditioning.{other}.conditioning_type") in ("mask", "segmentation"):
            found["loss_mask"].append(folder)
        else:
            found["source" if "source" in takes else "control"].append(folder)
    if found["control"] and "control" not in takes:
        return (
            Fate.NOT_POSSIBLE,
            f"{draft.get('model.name')} takes no such pictures here: the clips are trained without them",
        )
    remarks = [
        draft.set(f"dataset.{number}.{kind}", folders if len(folders) > 1 and kind == "source" else folders[0])
        for kind, folders in found.items()
        if folders
    ]
    return (
        (Fate.TAKEN, ", ".join(remarks))
        if remarks
        else (Fate.TO_FILL_IN, "no folder of it is known: set dataset.source or control")
    )


def _generated(value: Any, draft: ImportDraft) -> Outcome:
    return (
        Fate.NOT_POSSIBLE,
        "such pictures are not made here: make them once, and set dataset.source or dataset.control to their folder",
    )


def _off(why: str) -> Rule:
    return rules.without_meaning(why)


def _steps(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.TAKEN, draft.set("train.max_steps", value)) if value else (Fate.DEFAULT, "num_train_epochs decides")


def _epochs(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("max_train_steps") and draft.settings.get("strict_epoch_limit") is not True:
        return Fate.NO_MEANING, "max_train_steps decides"
    if not value:
        return Fate.DEFAULT, "max_train_steps decides"
    return Fate.TAKEN, draft.set("train.max_epochs", math.ceil(value))


def _learning_rate(value: Any, draft: ImportDraft) -> Outcome:
    settings, rate = draft.settings, float(value)
    if settings.get("lr_scale") is True:
        factor = 1.0
        for key, default in (("train_batch_size", 4), ("gradient_accumulation_steps", 1), ("num_processes", 1)):
            factor *= float(settings.get(key, default))
        rate *= math.sqrt(factor) if settings.get("lr_scale_sqrt") is True else factor
    if draft.get("train.optimizer") == "prodigy" and rate < 0.01:
        return (
            Fate.NOT_POSSIBLE,
            f"{draft.set('train.learning_rate', 1.0)}: Prodigy multiplies the rate that it finds by this",
        )
    return Fate.TAKEN, draft.set("train.learning_rate", rate)


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    own = optimizers.KNOWN.get(str(value).lower(), optimizers.OTHER)
    remark = draft.set("train.optimizer", own.name)
    for key, setting in own.settings.items():
        draft.set(f"train.{key}", setting, f"default of {value} in SimpleTuner")
    return (Fate.NOT_POSSIBLE, f"{remark}: {own.differs}") if own.differs else (Fate.TAKEN, remark)


def _optimizer_config(value: Any, draft: ImportDraft) -> Outcome:
    """Convert "weight_decay=0.01,eps=1e-8" for the settings that are here too."""
    pairs = [part.partition("=") for part in str(value).split(",") if part.strip()]
    told, rest = [], []
    for name, _, text in pairs:
        name = name.strip()
        if name in ("weight_decay", "eps"):
            told.append(draft.set(f"train.{name}", float(text)))
        else:
            rest.append(name)
    if rest:
        return Fate.NOT_POSSIBLE, f"{', '.join([*told, ''])}the optimizer has no {', '.join(rest)} here: leave it out"
    return (Fate.TAKEN, ", ".join(told)) if told else (Fate.DEFAULT, "none")


def _betas(value: Any, draft: ImportDraft) -> Outcome:
    pair: list[Any] = [draft.settings.get(f"optimizer_beta{number}") for number in (1, 2)]
    if None in pair:
        return Fate.NO_MEANING, "SimpleTuner takes both or none"
    return Fate.TAKEN, draft.set("train.betas", [float(beta) for beta in pair])


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    settings = draft.settings
    if draft.get("train.optimizer") == "schedulefree":
        return Fate.NO_MEANING, "schedule-free AdamW has a constant rate"
    if value in _SCHEDULES:
        return Fate.TAKEN, draft.set("train.learning_rate_schedule", _SCHEDULES[value])
    if value in _FALLING:
        remark = draft.set("train.learning_rate_schedule", _FALLING[value])
        remark += f", {draft.set('train.final_learning_rate', float(settings.get('lr_end', 4e-7)))}"
        if value == "polynomial" and settings.get("lr_power", 0.8) in (1, 1.0):
            return Fate.TAKEN, remark
        course = (
            "a straight line" if value == "polynomial" else "one fall until max_steps, and no waves of lr_warmup_steps"
        )
        return Fate.NOT_POSSIBLE, f"{remark}: {course}"
    return Fate.NOT_POSSIBLE, f"{draft.set('train.learning_rate_schedule', 'constant')} replaces it"


def _warmup(value: Any, draft: ImportDraft) -> Outcome:
    schedule = draft.settings.get("lr_scheduler", "constant_with_warmup")
    if schedule in ("cosine", "sine", "cosine_with_restarts"):
        return Fate.NO_MEANING, "it is the length of a wave of that schedule"
    if schedule == "constant" and draft.get("train.optimizer") != "schedulefree":
        return Fate.NO_MEANING, "constant has no warm-up there"
    return (Fate.TAKEN, draft.set("train.warmup_steps", value)) if value else (Fate.DEFAULT, "none")


def _clipping(value: Any, draft: ImportDraft) -> Outcome:
    remark = draft.set("train.max_grad_norm", value if value else NONE)
    if value and draft.settings.get("grad_clip_method", "value") == "value":
        return Fate.NOT_POSSIBLE, f"{remark} clips the norm of the whole gradient, and not each of its values"
    return Fate.TAKEN, remark


def _average(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("train.optimizer") == "schedulefree":
        return Fate.NO_MEANING, "schedule-free AdamW has an average of its own"
    if value is not True:
        draft.set("exports.weights", "model", "no average")
        return Fate.TAKEN, draft.set("train.ema_decay", 0.0)
    draft.set("exports.weights", "ema", "")
    if draft.settings.get("ema_device", "cpu") == "cpu":
        draft.set("train.ema_device", "cpu")
    return Fate.TAKEN, draft.set("train.ema_decay", float(draft.settings.get("ema_decay", 0.995)))


def _model_type(value: Any, draft: ImportDraft) -> Outcome:
    if value == "full":
        return Fate.TAKEN, "no [lora]: all weights are trained"
    if value != "lora":
        return Fate.NOT_POSSIBLE, "this kind of training is not there: all weights are trained"
    draft.set("lora.type", "lora")
    return Fate.TAKEN, "[lora]"


def _lora_type(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("lora.type") is None:
        return Fate.NO_MEANING, "all weights are trained"
    if value == "lycoris":
        if "lycoris.algo" not in draft.settings.values:
            draft.set("lora.type", "lokr")
            return Fate.TO_FILL_IN, "lycoris_config is not found: give it too, or set lora.type and lora.rank by hand"
        return Fate.TAKEN, "lycoris_config"
    draft.set("lora.targets", "default", "all attentions")
    return Fate.TAKEN, 'lora.type = "lora"'


def _of_lora(rule: Rule) -> Rule:
    """Convert an option of LoRAs that are not from LyCORIS."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if draft.get("lora.type") is None:
            return Fate.NO_MEANING, "all weights are trained"
        if str(draft.settings.get("lora_type", "standard")).lower() == "lycoris":
            return Fate.NO_MEANING, "lycoris_config decides"
        return rule(value, draft)

    return handle


def _layers(value: Any, draft: ImportDraft) -> Outcome:
    named = options.LAYERS.get(value) if isinstance(value, str) else value
    if not isinstance(named, list | str) or not named:
        return (
            Fate.NOT_POSSIBLE,
            "layers of this name are not known: list them in lora.targets; all attentions until then",
        )
    return Fate.TAKEN, draft.set("lora.targets", named)


def _algorithm(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("lora.type") is None:
        return Fate.NO_MEANING, "all weights are trained"
    here = {"lora": "lora", "locon": "lora", "lokr": "lokr", "loha": "loha", "diag-oft": "oft"}.get(str(value).lower())
    settings = draft.settings
    targets = [*_strings(settings.get("lycoris.apply_preset.target_module"))]
    blocks = any("feed" in name.lower() or "mlp" in name.lower() or "block" in name.lower() for name in targets)
    draft.set("lora.targets", "blocks" if blocks or not targets else "default", "lycoris.apply_preset")
    remark = draft.set("lora.type", here or "lokr")
    if settings.get("lycoris.dora_wd", settings.get("lycoris.weight_decompose")) is True and here == "lora":
        draft.set("lora.dora", True)
    return (Fate.TAKEN, remark) if here else (Fate.NOT_POSSIBLE, f"{remark} replaces it")


def _strings(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _lycoris(rule: Rule) -> Rule:
    return lambda value, draft: rule(value, draft) if draft.get("lora.type") else (Fate.NO_MEANING, "no LyCORIS")


def _lycoris_rank(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("lora.type") == "oft":
        return Fate.TAKEN, draft.set("lora.block_size", value)
    return Fate.TAKEN, draft.set("lora.rank", value)


def _lycoris_alpha(value: Any, draft: ImportDraft) -> Outcome:
    rank: Any = draft.settings.get("lycoris.linear_dim")
    if draft.get("lora.type") == "oft":
        return Fate.NO_MEANING, "rotations have no scale"
    if draft.get("lora.type") == "lokr" and isinstance(rank, int) and rank >= 5000:
        return Fate.NO_MEANING, "a LoKr of two full factors has no scale"
    return Fate.TAKEN, draft.set("lora.alpha", float(value or rank))


def _factor(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("lora.type") != "lokr" or value == -1:
        return Fate.DEFAULT, "factors as near in size as possible"
    return Fate.TAKEN, draft.set("lora.decompose_factor", value)


def _base(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).lower()
    if name in ("no_change", "none", ""):
        return Fate.DEFAULT, "the base is not quantised"
    if draft.get("lora.type") is None:
        return Fate.NOT_POSSIBLE, "all weights are trained, which are not quantised"
    kinds = (
        ("nf4", "nf4"),
        ("int8", "int8"),
        ("fp8", "float8"),
        ("float8", "float8"),
        ("int4", "nf4"),
        ("fp4", "nf4"),
        ("int2", "nf4"),
    )
    base = next((base for part, base in kinds if part in name), "float8")
    remark = draft.set("lora.base", base)
    exact = name.startswith(("int8-", "fp8-", "nf4-bnb"))
    return (Fate.TAKEN, remark) if exact else (Fate.NOT_POSSIBLE, f"{remark} replaces it")


def _shift(value: Any, draft: ImportDraft) -> Outcome:
    if not is_flow(draft):
        return Fate.NO_MEANING, "it belongs to flow matching"
    if draft.settings.get("flow_schedule_auto_shift") is True and not value:
        return Fate.NO_MEANING, "flow_schedule_auto_shift decides"
    return Fate.TAKEN, draft.set("objective.timestep_shift", float(value) if value else NONE)


def _auto_shift(value: Any, draft: ImportDraft) -> Outcome:
    if not value or draft.settings.get("flow_schedule_shift", 3.0):
        return Fate.DEFAULT, "off"
    return (
        Fate.NOT_POSSIBLE,
        f"{draft.set('objective.timestep_shift', 'auto')} grows with the size too, by another rule",
    )


def _density(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the density of timesteps, of which each kind has an option of its own."""
    settings = draft.settings
    if not is_flow(draft):
        return Fate.NO_MEANING, "it belongs to flow matching"
    if settings.get("flow_use_uniform_schedule") is True:
        return Fate.TAKEN, draft.set("objective.timestep_sampling", "uniform")
    if settings.get("flow_use_beta_schedule") is True:
        draft.set("objective.beta_alpha", float(settings.get("flow_beta_schedule_alpha", 2.0)))
        draft.set("objective.beta_beta", float(settings.get("flow_beta_schedule_beta", 2.0)))
        return Fate.TAKEN, draft.set("objective.timestep_sampling", "beta")
    draft.set("objective.timestep_sampling", "logit-normal")
    return Fate.TAKEN, draft.set("objective.logit_std", float(settings.get("flow_sigmoid_scale", 1.0)))


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    if value == "l2":
        return Fate.DEFAULT, "squared error"
    here = {"huber": "huber", "smooth_l1": "smooth-l1"}.get(str(value))
    if here is None:
        return Fate.NOT_POSSIBLE, "this loss is not there; the squared error replaces it"
    settings = draft.settings
    draft.set("objective.huber_delta", float(settings.get("huber_c", 0.1)))
    schedule = settings.get("huber_schedule", "snr")
    if schedule == "exponential":
        draft.set("objective.huber_schedule", "exponential")
    remark = f"{draft.set('objective.loss', here)}, whose bend is sharper"
    if schedule == "snr":
        return Fate.NOT_POSSIBLE, f"{remark}; its bound is the same at all timesteps"
    return Fate.TAKEN, remark


def _snr(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if is_flow(draft):
        return Fate.NO_MEANING, "flow matching has no such weights there"
    remark = draft.set("objective.snr_gamma", float(value))
    return Fate.TAKEN, f"{draft.set('objective.loss_weighting', 'min-snr')}, {remark}"


def _dtype(value: Any, draft: ImportDraft) -> Outcome:
    return rules.by_name("precision.compute", _DTYPES, "bfloat16", "this dtype is not there")(value, draft)


def _first_frame(value: Any, draft: ImportDraft) -> Outcome:
    if not value or not datasets.conditioning_of(draft).frames:
        return Fate.NO_MEANING, "the model decides"
    share = float(draft.settings.get("ltx_i2v_prob", 0.1)) if models.family(draft.settings).startswith("ltx") else 1.0
    return Fate.TAKEN, draft.set("objective.mask_ratios.image_head", share)


def _prompts(value: Any, draft: ImportDraft) -> Outcome:
    prompt = draft.settings.get("validation_prompt")
    found = [prompt.strip()] if isinstance(prompt, str) and prompt.strip() not in ("", "None") else []
    if draft.settings.get("validation_disable") is True or not found:
        return Fate.DEFAULT, "no previews"
    wants = datasets.conditioning_of(draft)
    if wants.needs_first_frame or wants.needs:
        return (
            Fate.NOT_POSSIBLE,
            "previews need a picture: set samples.prompts with samples.reference or samples.source",
        )
    return Fate.TAKEN, draft.set("samples.prompts", found)


def _if_previewed(rule: Rule) -> Rule:
    return lambda value, draft: rule(value, draft) if draft.get("samples.prompts") else (Fate.NO_MEANING, "no previews")


def _preview_size(value: Any, draft: ImportDraft) -> Outcome:
    text = str(value).split(",")[0].strip().lower()
    width, _, height = text.partition("x")
    sides = [float(side) for side in (width, height or width)]
    sides = [side * 1000 if 0 < side < 10 else side for side in sides]  # megapixels
    remarks = [
        datasets.set_preview_side(draft, f"samples.{key}", side)
        for key, side in zip(("width", "height"), sides, strict=True)
    ]
    if "," in str(value):
        return Fate.NOT_POSSIBLE, f"{', '.join(remarks)}, the first of the sizes: previews have one"
    return Fate.TAKEN, ", ".join(remarks)


def _preview_frames(value: Any, draft: ImportDraft) -> Outcome:
    if not value or datasets.preset_of(draft).config.pictures_only:
        return Fate.NO_MEANING, "pictures"
    return Fate.TAKEN, draft.set("samples.num_frames", datasets.frames_here(draft, int(value)))


def _reported(value: Any, draft: ImportDraft) -> Outcome:
    known = [name for name in ("wandb", "trackio") if name in str(value).lower() or str(value).lower() == "all"]
    known = [name for name in known if name == "wandb" or str(value).lower() != "all"]
    if not known:
        unknown = value not in ("none", "None", "tensorboard", None, "", False)
        return (
            (Fate.NOT_POSSIBLE, "this tracker is not there")
            if unknown
            else (Fate.DEFAULT, "TensorBoard is always written")
        )
    for key, name in (("tracker_project_name", "project"), ("tracker_run_name", "name")):
        if isinstance(own := draft.settings.get(key), str) and own:
            draft.set(f"logging.{name}", own, key)
    return Fate.TAKEN, draft.set("logging.trackers", known)


def _compiled(value: Any, draft: ImportDraft) -> Outcome:
    if str(value).lower() in ("no", "none", ""):
        return Fate.DEFAULT, "off"
    return Fate.TAKEN, draft.set("train.compile", True)


def _seed(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, 0, -1):
        return Fate.NO_MEANING, "a random seed there; seed = 42 by default"
    return Fate.TAKEN, draft.set("seed", value)


def _switch(target: str, value: Any) -> Rule:
    def handle(own: Any, draft: ImportDraft) -> Outcome:
        return (Fate.TAKEN, draft.set(target, value)) if own else (Fate.DEFAULT, "off")

    return handle


def _shared_tokens(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, 0, 1):
        return Fate.DEFAULT, "1"
    split = datasets.preset_of(draft).config.network.sequence
    if split is not None and split.pads:
        return Fate.TAKEN, draft.set("parallel.sequence_degree", value)
    return Fate.NOT_POSSIBLE, (
        "the tokens of this model's sizes cannot all be divided among ranks: set parallel.sequence_degree, and "
        "buckets.aspect_ratios to those of which they can"
    )


def _assistant(value: Any, draft: ImportDraft) -> Outcome:
    if not value or value == "None" or draft.get("lora.type") is None:
        return Fate.DEFAULT, "none"
    return Fate.TAKEN, draft.set("lora.training_adapter", str(value))


def _chosen(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, f'model.name = "{draft.get("model.name")}", model.weights = "{draft.get("model.weights")}"'


_PART = "read with"
_EVALUATED = "set validation.split, which keeps clips back and tells their loss"
_KIND = {
    "text_embeds": "captions are embedded once, and kept with encode.store",
    "image_embeds": "latents are kept with encode.store",
    "conditioning_image_embeds": "embeddings of pictures are kept with encode.store",
    "conditioning": "read with conditioning_data of the dataset",
    "disabled": "left out there, too",
}

RULES: dict[str, Rule] = {
    **options.RULES,
    "model_family": _chosen,
    "model_flavour": _chosen,
    "pretrained_model_name_or_path": _chosen,
    "pretrained_transformer_model_name_or_path": _chosen,
    "pretrained_unet_model_name_or_path": _chosen,
    "model_type": _model_type,
    "pretrained_vae_model_name_or_path": lambda value, draft: (
        (Fate.TAKEN, draft.set("autoencoder.weights", str(value)))
        if value and value != "None"
        else (Fate.DEFAULT, "the release's")
    ),
    "output_dir": lambda value, draft: (Fate.TAKEN, draft.set("output", str(value))),
    "seed": _seed,
    "data_backend_config": lambda value, draft: (
        (Fate.TAKEN, "[[dataset]]")
        if draft.settings.count("data")
        else (
            Fate.TO_FILL_IN,
            "the list of data backends is not found: give it too, or replace the placeholder of [[dataset]]",
        )
    ),
    # training
    "max_train_steps": _steps,
    "num_train_epochs": _epochs,
    "train_batch_size": rules.to("buckets.batch_size"),
    "gradient_accumulation_steps": rules.to("train.gradient_accumulation_steps", none=1),
    "gradient_checkpointing": rules.to("model.gradient_checkpointing", none=False),
    "learning_rate": _learning_rate,
    "lr_scale": rules.without_meaning(f"{_PART} learning_rate"),
    "lr_scale_sqrt": rules.without_meaning(f"{_PART} learning_rate"),
    "lr_scheduler": _schedule,
    "lr_warmup_steps": _warmup,
    "lr_end": rules.without_meaning(f"{_PART} lr_scheduler"),
    "lr_power": rules.without_meaning(f"{_PART} lr_scheduler"),
    "lr_num_cycles": rules.only((1,), "1", "the rate falls once"),
    "optimizer": _optimizer,
    "optimizer_config": _optimizer_config,
    "optimizer_beta1": _betas,
    "optimizer_beta2": _betas,
    "max_grad_norm": _clipping,
    "grad_clip_method": rules.without_meaning(f"{_PART} max_grad_norm"),
    "use_ema": _average,
    "ema_decay": rules.without_meaning(f"{_PART} use_ema"),
    "ema_device": rules.without_meaning(f"{_PART} use_ema"),
    "ema_cpu_only": rules.without_meaning(f"{_PART} use_ema"),
    "mixed_precision": _dtype,
    "caption_dropout_probability": lambda value, draft: (
        Fate.TAKEN,
        draft.set("objective.caption_dropout", float(value or 0)),
    ),
    "dynamo_backend": _compiled,
    # LoRA
    "lora_type": _lora_type,
    "lora_rank": _of_lora(rules.to("lora.rank")),
    "lora_alpha": _of_lora(
        lambda value, draft: (
            (Fate.TAKEN, draft.set("lora.alpha", float(value))) if value is not None else (Fate.DEFAULT, "the rank")
        )
    ),
    "lora_dropout": _of_lora(rules.to("lora.dropout", none=0.0)),
    "use_dora": _of_lora(_switch("lora.dora", True)),
    "init_lora": lambda value, draft: (
        (Fate.TAKEN, draft.set("lora.weights", str(value)))
        if value and draft.get("lora.type")
        else (Fate.DEFAULT, "none")
    ),
    "flux_lora_target": _of_lora(_layers),
    "peft_lora_target_modules": _of_lora(_layers),
    "assistant_lora_path": _assistant,
    "lycoris_config": rules.without_meaning("read as lycoris.*"),
    "lycoris.algo": _algorithm,
    "lycoris.linear_dim": _lycoris(_lycoris_rank),
    "lycoris.linear_alpha": _lycoris(_lycoris_alpha),
    "lycoris.factor": _lycoris(_factor),
    "lycoris.decompose_both": _lycoris(
        lambda value, draft: (
            (Fate.TAKEN, draft.set("lora.decompose_both", True))
            if value and draft.get("lora.type") == "lokr"
            else (Fate.DEFAULT, "off")
        )
    ),
    "lycoris.dropout": _lycoris(rules.to("lora.dropout", none=0.0)),
    "lycoris.multiplier": rules.only((1, 1.0), "1", "the adapter has its full strength"),
    "lycoris.bypass_mode": rules.without_meaning("it only affects how the update is computed"),
    "lycoris.full_matrix": rules.without_meaning("lora.rank decides"),
    "lycoris.use_tucker": rules.without_meaning("convolutions are not adapted"),
    "lycoris.dora_wd": rules.without_meaning(f"{_PART} lycoris.algo"),
    "lycoris.weight_decompose": rules.without_meaning(f"{_PART} lycoris.algo"),
    "lycoris.apply_preset.target_module": rules.without_meaning(f"{_PART} lycoris.algo"),
    "lycoris.apply_preset.*": rules.impossible(
        "all layers have the same settings: lora.targets decides which there are", ()
    ),
    "lycoris.*": rules.impossible("it is not there: leave it out"),
    "base_model_precision": _base,
    # timesteps and loss
    "flow_schedule_shift": _shift,
    "flow_schedule_auto_shift": _auto_shift,
    "flow_sigmoid_scale": _density,
    "flow_use_uniform_schedule": _density,
    "flow_use_beta_schedule": _density,
    "flow_beta_schedule_alpha": rules.without_meaning(f"{_PART} flow_use_beta_schedule"),
    "flow_beta_schedule_beta": rules.without_meaning(f"{_PART} flow_use_beta_schedule"),
    "loss_type": _loss,
    "huber_c": rules.without_meaning(f"{_PART} loss_type"),
    "huber_schedule": rules.without_meaning(f"{_PART} loss_type"),
    "snr_gamma": _snr,
    "prediction_type": lambda value, draft: (
        (Fate.TAKEN, draft.set("objective.name", "v-prediction"))
        if value == "v_prediction" and not is_flow(draft)
        else (Fate.DEFAULT, "that of the model")
    ),
    # previews
    "validation_prompt": _prompts,
    "validation_step_interval": _if_previewed(rules.to("samples.every_steps", none=NONE)),
    "validation_guidance": _if_previewed(
        lambda value, draft: (Fate.TAKEN, draft.set("samples.guidance_scale", max(float(value), 1.0)))
    ),
    "validation_num_inference_steps": _if_previewed(rules.to("samples.num_inference_steps")),
    "validation_resolution": _if_previewed(_preview_size),
    "validation_num_video_frames": _if_previewed(_preview_frames),
    "framerate": _if_previewed(
        lambda value, draft: (
            (Fate.TAKEN, draft.set("samples.fps", float(value))) if value else (Fate.DEFAULT, "that of the model")
        )
    ),
    "validation_disable": rules.without_meaning(f"{_PART} validation_prompt"),
    # checkpoints
    "checkpoint_step_interval": rules.to("checkpoints.every_steps", none=NONE),
    "checkpoint_epoch_interval": _switch("checkpoints.at_epoch_end", True),
    "checkpoints_total_limit": rules.to("checkpoints.save_total_limit", none=NONE),
    "report_to": _reported,
    # memory and GPUs
    "fsdp_enable": _switch("parallel.strategy", "fsdp"),
    **{
        key: _switch("parallel.offload", True)
        for key in ("ramtorch", "enable_group_offload", "musubi_blocks_to_swap", "fsdp_cpu_offload")
    },
    "context_parallel_size": _shared_tokens,
    "ltx_i2v_prob": _first_frame,
    # options for all data backends
    **{
        key: rules.without_meaning("read with each data backend")
        for key in (
            *("resolution", "resolution_type", "minimum_image_size", "caption_strategy", "instance_prompt"),
            *("prepend_instance_prompt", "only_instance_prompt", "disable_multiline_split", "aspect_bucket_alignment"),
        )
    },
    # data backends
    "data.*.id": _identity,
    "data.*.type": lambda value, draft: (
        (Fate.TAKEN, "dataset.path")
        if value in ("local", "aws")
        else (Fate.TO_FILL_IN, "such a store is not read: save its clips into a folder")
    ),
    "data.*.dataset_type": rules.without_meaning("[[bucket]] num_frames decides"),
    "data.*.instance_data_dir": _folder,
    "data.*.instance_data_root": _folder,
    "data.*.aws_data_prefix": _folder,
    "data.*.aws_bucket_name": rules.without_meaning(f"{_PART} aws_data_prefix"),
    "data.*.dataset_name": _hub,
    "data.*.huggingface.dataset_name": _hub,
    "data.*.caption_strategy": _captions,
    "data.*.instance_prompt": rules.without_meaning(f"{_PART} caption_strategy"),
    "data.*.prepend_instance_prompt": rules.without_meaning(f"{_PART} caption_strategy"),
    "data.*.only_instance_prompt": rules.without_meaning(f"{_PART} caption_strategy"),
    "data.*.disable_multiline_split": rules.without_meaning(f"{_PART} caption_strategy"),
    "data.*.resolution": _resolution,
    "data.*.resolution_type": rules.without_meaning(f"{_PART} resolution"),
    "data.*.minimum_image_size": _limits,
    "data.*.minimum_aspect_ratio": _limits,
    "data.*.maximum_aspect_ratio": _limits,
    "data.*.video.num_frames": _frames,
    "data.*.video.min_frames": _limits,
    "data.*.video.max_frames": _limits,
    "data.*.video.is_i2v": _first_frame,
    "data.*.video.bucket_strategy": rules.without_meaning("each clip goes to the longest [[bucket]] that it fills"),
    "data.*.video.frame_interval": rules.without_meaning("the frames of [[bucket]] decide"),
    "data.*.video.*": rules.impossible("it is not there: leave it out"),
    "data.*.repeats": _repeats,
    "data.*.probability": rules.only(
        (1, 1.0), "1", "set dataset.repeats, which says how often a clip is trained in an epoch"
    ),
    "data.*.crop": _crop,
    "data.*.crop_aspect": _crop_aspect,
    "data.*.crop_style": _crop_style,
    "data.*.crop_aspect_buckets": _crop_shapes,
    "data.*.crop_aspect_buckets.*": _crop_shapes,
    "data.*.maximum_image_size": rules.without_meaning("clips are always resized to their bucket before a crop"),
    "data.*.target_downsample_size": rules.without_meaning("clips are always resized to their bucket before a crop"),
    "data.*.max_upscale_threshold": rules.impossible("set buckets.upscale = false, which leaves smaller clips out"),
    "data.*.max_num_samples": rules.impossible(
        "set dataset.repeats to the share of the clips, such as 0.25: others are drawn in each epoch"
    ),
    "data.*.train_batch_size": rules.impossible("batch sizes belong to [[bucket]]s: set batch_size there"),
    "data.*.conditioning_data": _companion,
    "data.*.conditioning": _generated,
    "data.*.conditioning.*": _generated,
    "data.*.conditioning_config.*": _generated,
    "data.*.caption_shuffle.enable": _switch("dataset.*.shuffle_tags", True),
    "data.*.caption_shuffle.position_start": rules.to("dataset.*.keep_tags", none=0),
    "data.*.caption_shuffle.split_on": rules.by_name(
        "dataset.*.tag_separator", {"comma": ",", "space": " ", "period": "."}, ",", "tags are not split there"
    ),
    "data.*.caption_shuffle.*": rules.without_meaning("each use of a clip draws an order"),
    "data.*.is_regularisation_data": _switch("dataset.*.prior_prediction", True),
    "data.*.is_regularization_data": _switch("dataset.*.prior_prediction", True),
    "data.*.audio.*": lambda value, draft: (
        (Fate.TAKEN, f'model.name = "{draft.get("model.name")}"')
        if draft.get("sound.name")
        else (Fate.NOT_POSSIBLE, "the model is trained without sound")
    ),
    "data.*.timestep_sampling_offset": rules.impossible(
        "all clips have the same timesteps: objective.logit_mean moves them"
    ),
    "data.*.slider_strength": rules.impossible("sliders are not trained"),
    "data.*.grounding.*": rules.impossible("boxes are not trained"),
    "data.*.s2v_datasets": rules.impossible("speech is not trained with a clip's pictures"),
    "data.*.parquet.*": rules.impossible(
        "give a list (.csv, .parquet, .jsonl) with the columns path and text as dataset.path"
    ),
    "data.*.parquet": rules.impossible(
        "give a list (.csv, .parquet, .jsonl) with the columns path and text as dataset.path"
    ),
    "data.*.start_epoch": rules.only(
        (1, None), "from the start", "all datasets are trained from the start: `--set` and resume changes them"
    ),
    "data.*.start_step": rules.only((0, None), "from the start", "all datasets are trained from the start"),
    "data.*.end_epoch": rules.impossible("all datasets are trained to the end"),
    "data.*.end_step": rules.impossible("all datasets are trained to the end"),
    "data.*.caption_filter_list": rules.impossible("change the caption files"),
    "data.*.delete_unwanted_images": rules.impossible(
        "no file of yours is deleted: clips are left out, and a report names them"
    ),
    "data.*.delete_problematic_images": rules.impossible(
        "no file of yours is deleted: clips are left out, and a report names them"
    ),
    "data.*.delete_nsfw_images": rules.impossible("pictures are not judged: leave them out with exclude_file"),
    "data.*.*": rules.without_meaning("how it stores or reads files, or a cache of it"),
    **{f"{kind}.*": rules.without_meaning(why) for kind, why in _KIND.items()},
    "eval.*": rules.impossible(_EVALUATED, ()),
    "caption.*": rules.impossible("captions without clips are not trained", ()),
    "audio.*": rules.impossible("sound is trained with the clips that have it", ()),
    "grounding.*": rules.impossible("boxes are not trained", ()),
    "distillation_cache.*": rules.impossible("models are not distilled", ()),
}
RULES |= {name[:-2]: rule for name, rule in RULES.items() if name.endswith(".*") and name[:-2] not in RULES}
