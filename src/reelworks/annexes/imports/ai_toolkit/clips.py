"""Rules by which the buckets of ai-toolkit drop clips, and the captions that it shows."""

from __future__ import annotations

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.trainer import FormerBuckets


def buckets(settings: FormerSettings, dataset: int) -> FormerBuckets:
    """Return the rules of its buckets, whose last batch is filled with clips of that batch (toolkit/buckets.py)."""
    return FormerBuckets(enlarges=False)


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption:
    """Return the caption of a clip, as `CaptionProcessingDTOMixin.get_caption` makes it (toolkit/dataloader_mixins.py)."""
    get = settings.below(f"datasets.{beside.clip.dataset}").get
    ending = str(get("caption_ext", get("caption_type", ".txt")))
    text = beside.text(f".{ending.lstrip('.')}") or ""
    tags = (text if text.strip() else get("default_caption") or "").split(",")
    trigger, is_reg = get("trigger_word") or settings.get("trigger_word") or "", get("is_reg") is True
    replaced = [tag.replace("[name]", trigger).replace("[trigger]", trigger) for tag in tags]
    whole = ", ".join(replaced)
    why = "[trigger] and [name] become the trigger word" if replaced != tags else ""
    if trigger.strip() and trigger not in whole and not is_reg:
        replaced[0] = f"{trigger} {replaced[0]}"
        why = why or "the trigger word is put before captions that lack it"
    if get("random_triggers"):
        return FormerCaption(frozenset([captions.plain(", ".join([*replaced, "…"]))]), "random_triggers are put behind")
    if get("shuffle_tokens") is True:
        why = "all tags are shuffled, those of keep_tokens and the trigger word too"
        return FormerCaption(frozenset([captions.mixed([], [tag.strip() for tag in replaced])]), why)
    return captions.former([", ".join(replaced)], why)
