"""Captions that a trainer shows with clips, beside those of the recipe: clips that get another one are named.

Each clip has one or several captions, of which each use shows one. White space makes no difference, as to text encoders.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from reelworks.annexes.imports.draft import Clip
from reelworks.core import user_files
from reelworks.core.errors import shown
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.query import captions, template

_MIXED = "\0"  # the place of tags whose order changes
_OTHER = "the caption is another one"
_BOM = "the byte order mark stays in the caption there"
_NOT_UTF8 = "the caption file is not UTF-8, at which the trainer stops"


class Caption(NamedTuple):
    """A caption of a clip, with the tags whose order changes from use to use apart.

    Attributes:
        text: The text, with a mark in place of these tags.
        tags: The tags, sorted.
        joint: What stands between them.
    """

    text: str
    tags: tuple[str, ...] = ()
    joint: str = ""

    def __str__(self) -> str:
        return self.text.replace(_MIXED, f"{self.joint} ".join(self.tags))


def plain(text: str) -> Caption:
    """Return the caption of a text that is shown as it is."""
    return Caption(re.sub(r" ?, ?", ", ", " ".join(text.split())).strip())


def mixed(first: Sequence[str], tags: Sequence[str], last: Sequence[str] = (), joint: str = ", ") -> Caption:
    """Return the caption of tags of which those in the middle are put into another order at each use."""
    several = len(tags) > 1
    text = joint.join([*first, *([_MIXED] if several else tags), *last])
    return Caption(plain(text).text, _sorted(tags), joint.strip()) if several else plain(text)


def _sorted(tags: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(plain(tag).text for tag in tags if tag.strip()))


class FormerCaption(NamedTuple):
    """The captions of a clip in a trainer.

    Attributes:
        captions: Those of which each use shows one; none if the trainer stops at the clip.
        why: What the trainer does where a recipe shows another caption; "" if it only reads the text.
    """

    captions: frozenset[Caption]
    why: str = ""


def former(texts: Iterable[str], why: str = "") -> FormerCaption:
    """Return the captions of texts that are shown as they are."""
    return FormerCaption(frozenset(map(plain, texts)), why)


def stops(why: str) -> FormerCaption:
    """Return that the trainer stops at a clip."""
    return FormerCaption(frozenset(), why)


class Beside(NamedTuple):
    """The files around a clip, as far as they are on this machine.

    Attributes:
        clip: The clip.
        path: Path of its file; "" if it is in a list, in an archive or elsewhere.
    """

    clip: Clip
    path: str

    def text(self, ending: str) -> str | None:
        """Return the text of the file of the clip's name with another ending; None if there is none.

        Raises `UnicodeDecodeError` for what is not UTF-8. Where the files are not at hand, it is that of the catalog.
        """
        return self.read(self.path.rpartition(".")[0] + ending) if self.path else self.clip.caption

    def read(self, path: str) -> str | None:
        """Return the text of any file, likewise."""
        try:
            return Path(path).read_text(encoding="utf-8")
        except OSError:
            return None


def here(text: str | None, dataset: DatasetConfig) -> frozenset[Caption] | None:
    """Return the captions that a recipe shows with a clip of this text; None if it does not train the clip."""
    text = text or dataset.missing_caption
    if text is None:
        return None
    lines = captions.lines(text) or [""]
    chosen = {"whole": [text], "first": lines[:1], "lines": lines}[dataset.captions]
    return frozenset(_here(each, dataset) for each in chosen)


def _here(text: str, dataset: DatasetConfig) -> Caption:
    kept, rest = captions.tags(text, dataset) if dataset.shuffle_tags else ([], [])
    joint = captions.joint(dataset)
    if len(rest) < 2:
        text = joint.join([*kept, *rest]) if dataset.shuffle_tags else text
        text = text if dataset.trigger is None else captions.triggered(text, dataset.trigger)
        return plain(template.fill(dataset.caption, text, {}))
    text = joint.join([*kept, _MIXED])
    if dataset.trigger is not None:
        whole = captions.triggered(joint.join([*kept, *rest]), dataset.trigger)
        rest = [re.sub(r"\[trigger\]|\[name\]", lambda _: dataset.trigger or "", tag) for tag in rest]
        before = "" if whole.startswith((kept or rest)[0]) else f"{dataset.trigger} "
        text = before + re.sub(r"\[trigger\]|\[name\]", lambda _: dataset.trigger or "", text)
    return Caption(plain(template.fill(dataset.caption, text, {})).text, _sorted(rest), joint.strip())


def others(
    caption_of: Callable[[Beside], FormerCaption | None], clips: Iterable[tuple[Clip, str, DatasetConfig]]
) -> dict[str, list[str]]:
    """Return the names of clips that a trainer shows with another caption than their dataset, by what it does."""
    found: dict[str, list[str]] = defaultdict(list)
    examples: dict[str, str] = {}
    for clip, name, dataset in clips:
        ours = here(clip.caption, dataset)
        theirs = _former(caption_of, Beside(clip, _path(clip, dataset)))
        if ours is None or theirs is None or theirs.captions == ours:
            continue
        why = _BOM if _without_mark(theirs.captions) == ours else theirs.why or _OTHER
        found[why].append(name)
        examples.setdefault(why, _example(theirs.captions, ours))
    return {f"{why}{examples[why]}": named for why, named in sorted(found.items(), key=lambda item: -len(item[1]))}


def _former(caption_of: Callable[[Beside], FormerCaption | None], beside: Beside) -> FormerCaption | None:
    try:
        return caption_of(beside)
    except UnicodeDecodeError:
        return stops(_NOT_UTF8)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        return None  # settings that a stranger filled with something else, which the list of settings tells


def _without_mark(found: frozenset[Caption]) -> frozenset[Caption]:
    bare = [[each.text, *each.tags] for each in found]
    texts = [[part.replace("\ufeff", "") for part in parts] for parts in bare]
    return frozenset(
        each._replace(text=text, tags=_sorted(tags)) for each, (text, *tags) in zip(found, texts, strict=True)
    )


def _example(theirs: frozenset[Caption], ours: frozenset[Caption]) -> str:
    if not theirs:
        return ""
    there, own = (min(map(str, one - other or one)) for one, other in ((theirs, ours), (ours, theirs)))
    return f": {shown(there)} there, {shown(own)} here"


def _path(clip: Clip, dataset: DatasetConfig) -> str:
    folder = None if dataset.place.url or dataset.place.list_file else user_files.existing(dataset.place.root)
    path = None if folder is None else folder / clip.path
    return str(path) if path is not None and path.is_file() else ""
