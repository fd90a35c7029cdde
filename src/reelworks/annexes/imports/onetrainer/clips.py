"""Rules by which the buckets of OneTrainer drop clips, and the captions that it shows."""

from __future__ import annotations

from pathlib import PurePosixPath

from reelworks.annexes.imports import captions, values
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.onetrainer import concepts, parts
from reelworks.annexes.imports.trainer import FormerBuckets


def buckets(settings: FormerSettings, dataset: int) -> FormerBuckets | None:
    """Return the rules of its buckets, which are cut to whole batches (mgds/pipelineModules/AspectBatchSorting.py)."""
    try:
        batch = values.whole(settings.get("batch_size", 1))
        amount, is_samples = concepts.balancing_of(settings, _concept(settings, dataset))
    except (TypeError, ValueError):
        return None
    rules = FormerBuckets(whole_batches=batch * parts.processes(settings))
    return rules._replace(most_clips=int(amount)) if is_samples else rules._replace(share=min(amount, 1.0))


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption:
    """Return the captions of a picture: lines of its file or of the concept's, or its name, with their tags shuffled."""
    get = settings.below(f"concepts.{_concept(settings, beside.clip.dataset)}.text").get
    source, why = get("prompt_source", "sample"), ""
    if source == "filename":
        texts, why = [PurePosixPath(beside.clip.path).stem], "captions are the names of files"
    elif source == "concept":
        texts, why = _lines(beside.read(str(get("prompt_path", "")))), "captions are the lines of prompt_path"
    else:
        texts = _lines(beside.text(".txt"))
    if get("caps_randomize_enable") is True:
        why = "capitals of tags are drawn"
        texts = [text.lower() for text in texts] if get("caps_randomize_lowercase") is True else texts
    if get("enable_tag_shuffling") is not True:
        return captions.former(texts, why)
    delimiter, kept = str(get("tag_delimiter", ",")), values.whole(get("keep_tags_count", 1), 0)
    tags = [[tag for each in text.split(delimiter) if (tag := each.strip())] for text in texts]
    mixed = (captions.mixed(each[:kept], each[kept:], joint=f"{delimiter} ") for each in tags)
    return FormerCaption(frozenset(mixed), why)


def _concept(settings: FormerSettings, dataset: int) -> int:
    """Return the number of the concept that a dataset is."""
    return next(concept for concept, number in concepts.numbers(settings).items() if number == dataset)


def _lines(text: str | None) -> list[str]:
    return [line.strip() for line in (text or "").split("\n") if line.strip()] or [""]
