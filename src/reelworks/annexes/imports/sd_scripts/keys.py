"""Rules of sd-scripts' settings: its argument parsers of version 0.10 and its dataset config."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from reelworks.annexes.imports import datasets as datasets_here
from reelworks.annexes.imports import rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import adapters, datasets, previews, timesteps, training
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.values import is_on, number_of, text

_TEXT = "text encoders keep their weights: only the denoiser is trained"
_PARTS = "the text encoders and the autoencoder of the release are used: text_encoder.weights, autoencoder.weights"


class _Family(NamedTuple):
    """A beginning of presets' names, see `families.toml`."""

    density: str = "sigma"
    shift: float = 3.0
    defaults: Mapping[str, Any] = {}
    targets: list[str] | str = "blocks"
    why: str = "linear layers of all blocks"


_FAMILIES = {name: _Family(**found) for name, found in tables.table("sd_scripts", "families").items()}
HUBER = {"huber": "huber", "smooth_l1": "smooth-l1"}


def family_of(draft: ImportDraft) -> str:
    """Return the beginning of the preset's name: sdxl, sd1.5, flux, sd3, chroma, anima, hunyuan-image or lumina."""
    preset = str(draft.get("model.name", ""))
    return next((name for name in _FAMILIES if preset.startswith(name)), preset)


def of_family(draft: ImportDraft) -> _Family:
    """Return what differs by the model."""
    return _FAMILIES.get(family_of(draft), _Family())


def _sampling(value: Any, draft: ImportDraft) -> Outcome:
    return timesteps.sampling(value, draft, default_shift=of_family(draft).shift)


def _weighting(value: Any, draft: ImportDraft) -> Outcome:
    if family_of(draft) == "sd3":
        return _sd3_density(value, draft)
    default = "raw" if family_of(draft) in ("hunyuan-image", "lumina") else "sigma_scaled"
    kind = draft.settings.get("model_prediction_type", default)
    return timesteps.weighting(value, draft, weighs=kind == "sigma_scaled" or family_of(draft) == "anima")


def _sd3_density(value: Any, draft: ImportDraft) -> Outcome:
    """Convert SD3's density, in which the drawn number is the timestep itself."""
    remark = timesteps.by_scheme(str(value), draft, number_of(draft.settings.get("training_shift", 1.0)), sign=1)
    fate, weight = timesteps.weighting(value, draft)
    return Fate.TAKEN, f"{remark}, {weight}" if fate is Fate.TAKEN else remark


def _bound(value: Any, draft: ImportDraft) -> Outcome:
    if not draft.is_flow and value not in (None, {"min_timestep": 0, "max_timestep": 1000}[draft.key]):
        title = "SD 1.5" if family_of(draft) == "sd1.5" else "SDXL"
        return Fate.NOT_POSSIBLE, f"{title} is trained at all timesteps"
    if not draft.is_flow:
        return Fate.DEFAULT, "all timesteps"
    return timesteps.bound(value, draft, default_sampling=of_family(draft).density)


def _of_flow(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.NO_MEANING, "the density of timesteps has it" if draft.is_flow else "only flow matching has it"


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    if value == "l1":
        draft.set("objective.huber_delta", 0.001)
        return Fate.NOT_POSSIBLE, f"{draft.set('objective.loss', 'smooth-l1')} with a small delta replaces it"
    return (
        Fate.TAKEN,
        f"{draft.set('objective.loss', HUBER[value])}; there the bend is smooth, and the loss twice as large",
    )


def draws_captions(draft: ImportDraft) -> bool:
    """Whether captions or pictures differ at each use, which stored ones do not."""
    keys = ("shuffle_tags", "tag_dropout")
    numbers = range(draft.count("dataset"))
    return draft.get("data.crop") == "random" or any(draft.get(f"dataset.{n}.{key}") for n in numbers for key in keys)


def _store(value: Any, draft: ImportDraft) -> Outcome:
    if draws_captions(draft):
        return Fate.NOT_POSSIBLE, "captions or crops are drawn: encode.store with encode.variants stores several"
    return Fate.TAKEN, draft.set("encode.store", True)


def _autoencoder(value: Any, draft: ImportDraft) -> Outcome:
    is_hub_id = isinstance(value, str) and value.count("/") == 1 and not value.startswith((".", "/", "~", "<"))
    if is_hub_id and "." not in value.rpartition("/")[2][-13:]:
        return Fate.TAKEN, draft.set("autoencoder.weights", value)
    return Fate.NO_MEANING, _PARTS


def _trains_texts(draft: ImportDraft) -> bool:
    """Whether the scripts' LoRA has text encoders, which a rate of 0 leaves out."""
    get = draft.settings.get
    return not is_on(get("network_train_unet_only")) and get("text_encoder_lr") not in (0, "0", [0], [0, 0])


def _text_encoders(value: Any, draft: ImportDraft) -> Outcome:
    if not _trains_texts(draft):
        return Fate.DEFAULT, "text encoders keep their weights"
    fate, remark = rules.train_texts(draft)
    get = draft.settings.get
    own, rate = get("unet_lr"), get("learning_rate")
    if fate is Fate.TAKEN and get("text_encoder_lr") is None and None not in (own, rate) and own != rate:
        remark += f", {rules.text_rate(rate, draft, get('optimizer_type'))[1]}"  # that of all but the network
    return fate, remark


def _text_rate(value: Any, draft: ImportDraft) -> Outcome:
    if not _trains_texts(draft):
        return Fate.NO_MEANING, "text encoders keep their weights"
    if not draft.settings.get("network_module") or rules.train_texts(draft)[0] is not Fate.TAKEN:
        return Fate.NOT_POSSIBLE, _TEXT
    return rules.text_rate(value, draft, draft.settings.get("optimizer_type"))


def _masks(value: Any, draft: ImportDraft) -> Outcome:
    if is_on(value) and not any(draft.get(f"dataset.{n}.loss_mask") for n in range(draft.count("dataset"))):
        return Fate.TO_FILL_IN, "masks are pictures in a folder: set dataset.loss_mask"
    return (Fate.TAKEN, "dataset.loss_mask") if is_on(value) else (Fate.DEFAULT, "off")


# Of the arguments; those of datasets are in DATASET_DEFAULTS. `timestep_sampling` and others depend on the model.
DEFAULTS: Mapping[str, Any] = {**training.DEFAULTS, "mixed_precision": "no"}
OF_ADAPTERS: Mapping[str, Any] = {"network_dim": 4, "network_alpha": 1, "network_train_unet_only": False}


def _metadata(value: Any, draft: ImportDraft) -> Outcome:
    if str(value).lower().endswith(".jsonl"):
        return datasets.path(value, draft)
    return Fate.NOT_POSSIBLE, "captions are in text files beside the pictures, or in a .csv, .parquet or .jsonl"


def _template(value: Any, draft: ImportDraft, form: str) -> Outcome:
    """Put words around the captions of a dataset."""
    key, words = "dataset.*.caption", datasets_here.as_text(text(value))
    return Fate.TAKEN, draft.set(key, form.replace("{}", words).replace("{text}", draft.get(key, "{text}")))


def _wildcard(value: Any, draft: ImportDraft) -> Outcome:
    if not is_on(value):
        return Fate.TAKEN, f"{draft.set('dataset.*.captions', 'first')}: the other lines are not read"
    remark = draft.set("dataset.*.captions", "lines")
    return Fate.TAKEN, f"{remark}: each use draws a line; choices in a line, as in {{a|b}}, are not there"


def _validation(value: Any, draft: ImportDraft) -> Outcome:
    share = number_of(value)
    if share == 0:
        return Fate.DEFAULT, "no validation"
    if not 0 < share < 1:
        return Fate.NOT_POSSIBLE, "no folder is for validation alone: validation.split holds back a share of all"
    return Fate.TAKEN, f"{draft.set('validation.split', share)}, of all datasets"


DATASET_DEFAULTS: Mapping[str, Any] = {"caption_dropout_rate": 0.0, "class_tokens": "", "enable_wildcard": False}
ALSO = {"batch_size": "train_batch_size", "num_repeats": "dataset_repeats"}


def _folder(value: Any, draft: ImportDraft) -> Outcome:
    """Take the folder of pictures; of a list, it is the root of its paths."""
    if draft.get("dataset.*.path") is None:
        return datasets.path(value, draft)
    return Fate.TAKEN, draft.set("dataset.*.root", str(value))


RULES = tables.read("kohya", "keys", training, adapters, previews) | tables.read(
    "sd_scripts", "keys", training, timesteps, sys.modules[__name__]
)
DATASETS = tables.read("sd_scripts", "datasets", datasets_here, datasets, sys.modules[__name__])
