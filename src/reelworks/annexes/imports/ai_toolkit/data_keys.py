"""Translations of the settings of `datasets` to recipe keys."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import datasets, rules, sizes
from reelworks.annexes.imports.ai_toolkit import train_keys
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.annexes.imports.sizes import Sizes
from reelworks.data.catalog.scan import caption_names

DATASET_DEFAULTS: dict[str, Any] = {
    "resolution": 512,
    "num_frames": 1,
    "caption_dropout_rate": 0.0,
    "default_caption": None,
    "trigger_word": None,
}


def sizes_of(settings: FormerSettings, number: int) -> list[Any]:
    """Return the resolutions of a dataset, each of which ai-toolkit makes a dataset of its own."""
    value = settings.get(f"datasets.{number}.resolution", 512)
    found = value if isinstance(value, list) else [value]
    return [size for place, size in enumerate(found) if size not in found[:place]]


def _uses(draft: ImportDraft, number: int) -> Outcome:
    """Set how often a clip is trained in an epoch at each size: its repeats, times two if it is mirrored too."""
    mirrored = 2 if draft.settings.get(f"datasets.{number}.flip_x") is True else 1
    total = max(int(draft.settings.get(f"datasets.{number}.num_repeats", 1)), 1) * mirrored
    if total == 1:
        return Fate.DEFAULT, "1"
    return Fate.TAKEN, draft.set(f"dataset.{number}.repeats", total)


def _resolution(value: Any, draft: ImportDraft) -> Outcome:
    number = draft.numbers[0]
    _uses(draft, number)
    own = _set_buckets(draft)[number].resolutions
    told = f"[[bucket]] resolution = {', '.join(own)}"
    if draft.get(f"dataset.{number}.resolutions") is not None:
        told += ", and dataset.resolutions: each clip is used once at each"
    return Fate.TAKEN, f"{told}; smaller pictures are enlarged, which ai-toolkit trains at their own size"


def _set_buckets(draft: ImportDraft) -> list[Sizes]:
    """Set a bucket for each resolution and number of frames of the datasets, and return the sizes of each."""
    found = []
    for number in range(draft.settings.count("datasets")):
        sides = sorted({datasets.side_of(size) for size in sizes_of(draft.settings, number)}, reverse=True)
        found.append(Sizes(tuple(f"{side}px" for side in sides), tuple(sorted({1, *_lengths(draft, number)}))))
    sizes.write(draft, found)
    draft.set("buckets.upscale", True, "smaller pictures are trained too")
    return found


def _lengths(draft: ImportDraft, number: int) -> list[int]:
    release = datasets.preset_of(draft).release
    if draft.settings.get(f"datasets.{number}.auto_frame_count") is True and not datasets.pictures_only(draft):
        return datasets.ladder(draft, release.num_frames)  # type: ignore[union-attr]
    return [datasets.frames_here(draft, int(draft.settings.get(f"datasets.{number}.num_frames", 1)))]


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
    if suffix in caption_names.SUFFIXES:
        return Fate.DEFAULT, f"captions are read from {' and '.join(caption_names.SUFFIXES)} files beside the clips"
    return Fate.NOT_POSSIBLE, f"captions are read from {' and '.join(caption_names.SUFFIXES)} files: rename them"


def _default_caption(value: Any, draft: ImportDraft) -> Outcome:
    text = value if isinstance(value, str) else ""
    return Fate.TAKEN, draft.set(f"dataset.{draft.numbers[0]}.missing_caption", text)


def _trigger(value: Any, draft: ImportDraft) -> Outcome:
    if not isinstance(value, str) or not value.strip():
        if not draft.numbers or draft.settings.get("trigger_word"):
            return Fate.DEFAULT, "none"
        return Fate.TAKEN, f"{draft.set(f'dataset.{draft.numbers[0]}.trigger', '')}: [trigger] and [name] are taken out"
    mine = draft.numbers[:1] or tuple(
        number
        for number in range(draft.settings.count("datasets"))
        if not draft.settings.get(f"datasets.{number}.trigger_word")
    )
    for number in mine:
        if draft.settings.get(f"datasets.{number}.is_reg") is not True:
            draft.set(f"dataset.{number}.trigger", value)
    return Fate.TAKEN, "dataset.trigger: in place of [trigger] and [name], and before captions without it"


def _kept(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get(f"datasets.{draft.numbers[0]}.shuffle_tokens") is True:
        return Fate.NO_MEANING, "shuffle_tokens puts all tags into another order"
    return Fate.TAKEN, draft.set(f"dataset.{draft.numbers[0]}.keep_tags", int(value or 0))


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
    if datasets.pictures_only(draft):
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


def _masks(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "none"
    return Fate.TAKEN, draft.set(f"dataset.{draft.numbers[0]}.loss_mask", str(value))


def _of_masks(what_to_do: str) -> Rule:
    """Report a setting of masks that is not there, in a dataset that has masks."""
    otherwise = rules.impossible(what_to_do)

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if not draft.settings.get(f"datasets.{draft.numbers[0]}.mask_path"):
            return Fate.NO_MEANING, "it belongs to mask_path"
        return otherwise(value, draft)

    return handle


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


_AUGMENTED = "set dataset.jitter_brightness, jitter_contrast, jitter_saturation, jitter_hue or rotate_degrees"

_ADAPTER = "adapters of this kind (IP-Adapter, ControlNet, T2I) are not trained: leave it out"
_STORE = ("encode.store", True)

RULES: dict[str, Rule] = {
    "datasets.*.folder_path": _folder,
    "datasets.*.dataset_path": _folder,
    "datasets.*.type": rules.only(("image",), "pictures and videos", "this kind of dataset is not there"),
    "datasets.*.batch_size": rules.impossible("batch sizes belong to [[bucket]]s: set batch_size there"),
    "datasets.*.default_caption": _default_caption,
    "datasets.*.trigger_word": _trigger,
    "trigger_word": _trigger,
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
    "datasets.*.shrink_video_to_frames": rules.read_with("num_frames"),
    "datasets.*.trim_auto_frame_count_tail": rules.without_meaning("the rest of a clip is cut away"),
    "datasets.*.fps": _rate,
    "datasets.*.do_i2v": _first_frame,
    "datasets.*.do_audio": _sound,
    "datasets.*.audio_preserve_pitch": rules.without_meaning("sound is not stretched"),
    "datasets.*.audio_normalize": rules.impossible("sound keeps its volume"),
    "datasets.*.caption_dropout_rate": _dropout,
    "datasets.*.token_dropout_rate": rules.to("dataset.*.tag_dropout", none=0.0),
    "datasets.*.shuffle_tokens": rules.to("dataset.*.shuffle_tags", none=False),
    "datasets.*.keep_tokens": _kept,
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
    "datasets.*.mask_path": _masks,
    "datasets.*.invert_mask": _of_masks("invert the files of dataset.loss_mask"),
    "datasets.*.mask_min_value": _of_masks("black areas of dataset.loss_mask do not count: make them grey"),
    "datasets.*.unconditional_path": rules.impossible(train_keys.OTHER_LOSS),
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
    "datasets.*.diff_output_preservation": rules.impossible(train_keys.PRIOR),
    "datasets.*.diff_output_preservation_class": rules.without_meaning("it belongs to diff_output_preservation"),
}
