"""Rules by which the buckets of SimpleTuner drop clips, and the captions that it shows."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.simpletuner import data_keys, models
from reelworks.annexes.imports.trainer import FormerBuckets


def buckets(settings: FormerSettings, dataset: int) -> FormerBuckets:
    """Return the rules of its buckets, whose last batch is filled with clips drawn anew (helpers/multiaspect/sampler.py)."""
    least, pixels, frames = data_keys.option(settings, dataset, "minimum_image_size"), 0, 0
    if data_keys.is_given(least):
        is_side = data_keys.option(settings, dataset, "resolution_type", "pixel_area") == "pixel"
        pixels = int(least * least if is_side else data_keys.megapixels(settings, dataset, least) * 1e6)
    if data_keys.is_video(settings, dataset):
        wanted = _whole(settings.get(f"data.{dataset}.video.num_frames"), data_keys.FRAMES)
        frames = models.frames_there(settings, _whole(settings.get(f"data.{dataset}.video.min_frames"), wanted))
    return FormerBuckets(least_pixels=pixels, least_frames=frames)


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption | None:
    """Return the captions of a clip, as `PromptHandler.magic_prompt` makes them (helpers/prompts.py)."""
    number = beside.clip.dataset
    strategy = data_keys.option(settings, number, "caption_strategy", "filename")
    prompt = data_keys.option(settings, number, "instance_prompt")
    if data_keys.option(settings, number, "only_instance_prompt") is True or strategy == "instanceprompt":
        texts = [str(each).strip() for each in (prompt if isinstance(prompt, list) else [prompt or ""])]
        return captions.former(texts, "one of several instance prompts is drawn" if len(texts) > 1 else "")
    if strategy == "filename":
        name = beside.clip.path.rpartition("/")[2].rpartition(".")[0]
        texts, why = [name.replace("_", " ")], "captions are file names"
    elif strategy == "textfile":
        text, why = beside.text(".txt"), ""
        if text is None:
            return captions.stops("a clip without a text file stops the trainer")
        whole = data_keys.option(settings, number, "disable_multiline_split") is True
        texts = [text] if whole else [line for line in text.split("\n") if line] or [""]
    else:
        return None
    if settings.get(f"data.{number}.caption_filter_list"):
        why = "words of caption_filter_list are taken out"
        return FormerCaption(frozenset(captions.plain(f"{text} …") for text in texts), why)
    before = f"{prompt} " if data_keys.option(settings, number, "prepend_instance_prompt") is True and prompt else ""
    if settings.get(f"data.{number}.caption_shuffle.enable") is not True:
        return captions.former([before + text for text in texts], why)
    return FormerCaption(frozenset(_shuffled(settings, number, before, text) for text in texts), why)


def _shuffled(settings: FormerSettings, number: int, before: str, text: str) -> captions.Caption:
    get = settings.below(f"data.{number}.caption_shuffle").get
    mark = {"space": " ", "period": "."}.get(str(get("split_on", "comma")), ",")
    tags = [tag.strip() for tag in text.split(mark) if tag.strip()]
    kept = _whole(get("position_start"), 0)
    if len(tags) - kept < 2:
        return captions.plain(before + text)
    found = captions.mixed(tags[:kept], tags[kept:], joint=" " if mark == " " else f"{mark} ")
    return found._replace(text=captions.plain(before + found.text).text)


def _whole(value: Any, otherwise: int) -> int:
    """Return a number of at least 1; another one for what a stranger wrote in its place."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 10**6 else otherwise
