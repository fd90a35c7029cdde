"""Tell mistakes in the words of the caller: recipe keys and options of commands, or arguments of the library.

Checks are written once, and name recipe keys. A function of the library that `tells_arguments` names arguments in their place,
unless a command or a training of a recipe calls it, which runs in `of_recipe`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from reelworks.core.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

# The class that has a table's keys as arguments, and the keys that messages name.
_TABLES = {
    "autoencoder": ("Geometry", "stride"),
    "bucket": ("BucketEntry", "resolution num_frames batch_size keep_prob"),
    "buckets": (
        "BucketTable.from_entries",
        "aspect_ratios batch_size incomplete_batch max_crop opensora opensora_drop_exact_length probability token_families "
        "token_family_crop tuned upscale",
    ),
    "checkpoints": ("Retention", "keep_best keep_every keep_last keep_within max_disk min_free save_total_limit"),
    "cost": ("CostConfig", "measured per_clip_us per_token_squared_us per_token_us"),
    "data": ("DataConfig", "alpha_color fps frame_interval hdr interlaced max_decode_failures prefetch_bytes"),
    "dataset": (
        "DatasetConfig",
        "caption control duplicates filter loss_mask mask min_sources missing_caption name path rejected repeats root scene_cuts "
        "source trust_list",
    ),
    "objective": (
        "ObjectiveConfig",
        "loss loss_weighting multires_noise_iterations name noise_offset timestep_sampling",
    ),
    "sound": ("SoundSpec", "missing"),
    "validation": ("DataSpec", "group split"),
}
_FIELDS = {
    "RECIPE": "recipe",
    "RUN": "source",
    "STEP": "step",
    "bucket": "entries",
    "output": "record_to",
    "resume": "state",
}
# A key, and its value if it follows.
_KEYS = "|".join(rf"{table}\.(?:{keys.replace(' ', '|')})" for table, (_, keys) in _TABLES.items())
_KEY = re.compile(rf"""\b({_KEYS})\b(?: = ("[^"]*"|true|false|[\d.]+\b))?""")
_PYTHON = {"true": "True", "false": "False"}
# Whole phrases, in this order.
_PHRASES = tuple(
    (re.compile(phrase), words)
    for phrase, words in (
        (r"create one with: reelworks scan DIR -o (.*)", r'create one: Catalog.scan(FOLDER, to="\1")'),
        (r"into another one: reelworks scan '?(.*?)'? -o CATALOG", r'into another one: Catalog.scan("\1", to=CATALOG)'),
        (r"scan again: reelworks scan DIR -o CATALOG", "scan again: Catalog.scan(FOLDER, to=CATALOG)"),
        (r"into a new catalog with -o DIR", "into a new catalog: Catalog.scan(FOLDER, to=DIR)"),
        (r"set root \(--root of scan\) to", "set root of DatasetConfig to"),
        (r"scan with --engine local", 'scan with engine="local"'),
        (r"give each \[\[dataset\]\]", "give each dataset"),
        (r" to with --output DIR", " to"),
        (r"another --output", "another folder"),
        (r"train into another folder with --output", "begin anew, with another record_to"),
        (r"catalog and recipe are unchanged", "catalog and settings are unchanged"),
        (r"the recipe has no bucket", "there is no bucket entry"),
        (r"^add e\.g\. \[\[bucket\]\].*", 'give one, as in BucketEntry("256px", num_frames=[1, 17])'),
        (r"the recipe has both \[\[bucket\]\] entries", "there are both entries"),
        (r"keep the \[\[bucket\]\] entries or \[buckets\.opensora\], and remove the other", "give one of them"),
        (r"write \[\[bucket\]\] entries instead of the table", "give entries in place of opensora"),
        (r"this key needs (.*), and the recipe has none", r"this argument needs \1, and there is none"),
        (r"add \[buckets\.opensora\], or remove this key", "give opensora, or leave this out"),
        (r"choose an autoencoder whose stride \(autoencoder\.stride\)", "choose an autoencoder whose stride"),
        (r"run `reelworks tune` on the recipe, or give", "measure it with `reelworks tune RECIPE`, or give"),
        (r" \(for a run that has begun: `--set [^`]*`\)", ""),
        (r"^list each clip with its problem: .*", "give each clip a companion of the same path and name"),
        (r"restart the data with --restart-data", "begin anew: Loader.restart()"),
        (r"keep fewer with \[checkpoints\] save_total_limit or max_disk, or move the run with --output",
         "keep fewer with save_total_limit or max_disk of Retention, or use another folder"),
        (r"the recipe names no metric for the best checkpoint", "there is no metric for the best checkpoint"),
        (r"set it in the recipe, e\.g\. keep_best = \{.*\}", "give one: Retention(keep_best=KeepBest(metric=METRIC))"),
        (r"validate more often with validation\.every_steps", "give it more often: save(..., metrics={...})"),
        (r", or in the recipe data\.measures = .*", ""),
        (r"export the trained weights with --weights", "export the trained weights: ema=False"),
        (r"leave --format out", "leave format out"),
        (r"this key is required", "this argument is required"),
        (r"add \S+ to the recipe", "give it"),
        (r"there is no such key", "there is no such argument"),
        (r"this key was renamed", "this argument was renamed"),
        (r"remove the key", "leave it out"),
        (r"give true or false", "give True or False"),
        (r"give text in quotes, as in \"\.\.\.\"", "give a str"),
        (r"see docs/reference/recipe\.md", "see docs/reference/api.md"),
    )
)  # fmt: skip
_recipes = 0  # commands and trainings of recipes that run now


@contextmanager
def of_recipe() -> Iterator[None]:
    """Let errors name recipe keys and options: a command, or the training of a recipe, is running."""
    global _recipes
    _recipes += 1
    try:
        yield
    finally:
        _recipes -= 1


def names_options() -> bool:
    """Return whether messages name recipe keys and options, since a command or the training of a recipe is running."""
    return _recipes > 0


def tells_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let the errors of a function or generator of the library name arguments."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def yielding(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _retold(tell):
                yield from function(*args, **kwargs)

        return yielding
    return _retold(tell)(function)


@contextmanager
def _retold(retell: Callable[[UserError], None]) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        if not _recipes:
            retell(error)
        raise


def named(**arguments: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let the errors of a function name these arguments in place of fields, where its own names differ."""

    def name(error: UserError) -> None:
        error.reword(field=arguments.get(error.field or "", error.field), problem=error.problem, remedy=error.remedy)

    return _retold(name)


def tell(error: UserError) -> None:
    """Let an error name arguments in place of recipe keys, unless a recipe is at work."""
    if not _recipes:
        error.reword(field=field_of(error.field), problem=text_of(error.problem), remedy=text_of(error.remedy))


def field_of(field: str | None) -> str | None:
    """Return the argument of a recipe key or option."""
    if field is None:
        return None
    if field.startswith("--"):
        return field.removeprefix("--").replace("-", "_")
    if field.startswith("dataset '"):
        return "folders"
    table, _, key = field.partition(".")
    return key.removeprefix("mirror.") if key and table in _TABLES else _FIELDS.get(field, field)


def text_of(text: str) -> str:
    """Return a sentence with arguments in place of recipe keys."""
    for phrase, words in _PHRASES:
        text = phrase.sub(words, text)
    return _KEY.sub(_argument, text)


def _argument(match: re.Match[str]) -> str:
    (table, _, key), value = match[1].partition("."), match[2]
    owner = _TABLES[table][0]
    return f"{key} of {owner}" if value is None else f"{owner}({key}={_PYTHON.get(value, value)})"
