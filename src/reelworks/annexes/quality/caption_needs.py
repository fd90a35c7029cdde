"""The use of captions: the trigger word, and the text encoder that reads them, as far as either is known."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.config import OWN_TEXT_ENCODERS, TextEncoderConfig, text_encoder_names
from reelworks.training.recipe.recipe import Recipe

CLIP_TOKENS = 77  # the shortest limit in use
# Kinds of networks that were trained on English alone, or nearly so.
_ENGLISH = frozenset(("clip_text_model", "t5"))
_TOKENIZERS = ("tokenizer", "tokenizer_2", "tokenizer_3")
_NO_LIMIT = 1 << 20  # what transformers writes for a tokenizer without one is larger

# Returns the number of tokens of each text, special ones included, and the number of unknown ones among these.
CountTokens = Callable[[Sequence[str]], tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True)
class ReadingEncoder:
    """A text encoder as a reader of captions.

    Attributes:
        name: How messages call it.
        max_tokens: Length in tokens to which captions are cut; None if it is not known.
        english_only: Whether it was trained on English alone; None if that is not known.
        count: Counts tokens by its own tokenizer; None without one, where words and punctuation marks stand for tokens.
    """

    name: str
    max_tokens: int | None
    english_only: bool | None = None
    count: CountTokens | None = None


@dataclass(frozen=True)
class CaptionNeeds:
    """The use of captions, as far as it is known.

    Attributes:
        trigger: The trigger word.
        encoder: The text encoder.
        templates: What a recipe puts around captions (`dataset.trigger` and `caption`), by the name of the dataset.
        triggered_datasets: Names of datasets with `dataset.trigger`, which is put before those captions alone that lack it.
        line_datasets: Names of datasets each line of whose texts is a caption.
    """

    trigger: str | None = None
    encoder: ReadingEncoder | None = None
    templates: tuple[tuple[str, str], ...] = ()
    line_datasets: tuple[str, ...] = ()
    triggered_datasets: tuple[str, ...] = ()

    @property
    def trigger_datasets(self) -> tuple[str, ...]:
        """Names of datasets in which a recipe puts the trigger word before captions."""
        if self.trigger is None:
            return ()
        word = re.compile(rf"(?<!\w){re.escape(self.trigger)}(?!\w)")
        return tuple(name for name, template in self.templates if word.search(template))


def find(trigger: str | None = None, text_encoder: str | None = None, recipe: Recipe | None = None) -> CaptionNeeds:
    """Return what is known by a trigger word, the name or folder of a text encoder, and a recipe.

    Raises:
        UserError: The text encoder is not known, or its tokenizer cannot be read.
    """
    if text_encoder is not None:
        encoder: ReadingEncoder | None = _named(text_encoder)
    else:
        encoder = None if recipe is None else _of_config(recipe.text_encoder)
    datasets = [] if recipe is None else recipe.dataset
    return CaptionNeeds(
        trigger,
        encoder,
        tuple((dataset.dataset_name, f"{dataset.trigger or ''} {dataset.caption}".strip()) for dataset in datasets),
        tuple(dataset.dataset_name for dataset in datasets if dataset.captions == "lines"),
        tuple(dataset.dataset_name for dataset in datasets if dataset.trigger),
    )


def _named(given: str) -> ReadingEncoder:
    if given == "clip":
        return ReadingEncoder("CLIP", CLIP_TOKENS, english_only=True)
    if given in text_encoder_names():
        return _of_config(TextEncoderConfig(name=given, weights=None if given == OWN_TEXT_ENCODERS[0] else "-"))
    folder = Path(given).expanduser()
    tokenizer = _tokenizer(folder) if folder.is_dir() else None
    if tokenizer is None:
        problem, remedy = (
            "there is no tokenizer in this folder",
            "name a folder with tokenizer.json, or with tokenizer/ in it",
        )
        if not folder.is_dir():
            names = ", ".join(("clip", *text_encoder_names()))
            problem = f"this is neither a text encoder that is known nor a folder; known: {names}"
            remedy = "name one of these, or the folder of a pipeline or a tokenizer"
        raise UserError(problem, code="text-encoder-unknown", field="--text-encoder", value=given, remedy=remedy)
    most = getattr(tokenizer, "model_max_length", None)
    return ReadingEncoder(
        str(given), most if most is not None and most < _NO_LIMIT else None, None, functools.partial(_count, tokenizer)
    )


def _of_config(config: TextEncoderConfig) -> ReadingEncoder:
    name, most = config.name, config.max_length
    if name == OWN_TEXT_ENCODERS[0]:
        return ReadingEncoder(name, most, english_only=False)
    known = registry.TEXT_ENCODERS.get(name)
    kinds = {network.kind for network in known.networks} if known is not None else {"t5"}
    tokenizer = None
    if config.weights is not None and (folder := Path(config.weights).expanduser()).is_dir():
        tokenizer = _tokenizer(folder, None if known is None else known.tokenizer)
    return ReadingEncoder(
        name, most, kinds <= _ENGLISH, None if tokenizer is None else functools.partial(_count, tokenizer)
    )


def _tokenizer(folder: Path, part: str | None = None) -> Any:
    """Return the tokenizer in a folder, or in that of a pipeline: the named one, or the one with the longest limit."""
    parts = (part,) if part is not None else tuple(reversed(_TOKENIZERS))
    places = [folder / name for name in parts if name is not None and (folder / name).is_dir()] or [folder]
    if not any((places[0] / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "spiece.model")):
        return None
    try:
        return optional_imports.transformers().AutoTokenizer.from_pretrained(
            str(places[0]), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # damaged files raise errors of any kind
        raise UserError(
            f"the tokenizer cannot be read ({str(error).strip().partition(chr(10))[0]})",
            code="text-encoder-unloadable",
            field="--text-encoder",
            value=str(places[0]),
            remedy="name a folder in diffusers' layout, or leave it out: words are counted then",
        ) from error


def _count(tokenizer: Any, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ids = tokenizer(list(texts), truncation=False, verbose=False)["input_ids"] if texts else []
    unknown = tokenizer.unk_token_id
    ends = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
    counts = np.array([len(line) for line in ids], dtype=np.int64)
    if unknown is None or unknown in ends:  # CLIP's is its end of text, which every text has
        return counts, np.zeros(len(ids), dtype=np.int64)
    return counts, np.array([line.count(unknown) for line in ids], dtype=np.int64)
