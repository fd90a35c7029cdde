"""Contract between the importer and a trainer whose configs it reads, and what trainers share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from reelworks.annexes.imports import datasets, sizes
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import Clip, FormerSettings, ImportDraft, without_numbers
from reelworks.annexes.imports.files import ConfigFile
from reelworks.annexes.imports.rules import Fate, ImportedKey, Outcome, Rule
from reelworks.annexes.imports.sizes import Sizes
from reelworks.core.errors import UserError
from reelworks.core.toml_none import WORD as NONE
from reelworks.models import registry
from reelworks.quickstart import recipe_lines
from reelworks.training.recipe import recipe_file

_MOST_REFUSED = 200  # refused values
_KEPT = ("model.name", "dataset.path", "bucket.resolution", "bucket.num_frames")  # without which there is no recipe
_STEPS_TO_FILL_IN = 1000


class FormerBuckets(NamedTuple):
    """Rules by which the buckets of a trainer drop clips of a dataset, in which trainers differ.

    Attributes:
        whole_batches: Clips of a batch on all processes, if what a bucket has beyond whole ones is left out; 0 if it is not.
        least_pixels: Area below which clips are left out.
        least_frames: Frames below which videos are left out.
        enlarges: Whether smaller clips are enlarged, and not trained at their own size.
        most_clips: Most clips that are drawn in an epoch.
        share: Share of the clips that is drawn in an epoch.
    """

    whole_batches: int = 0
    least_pixels: int = 0
    least_frames: int = 0
    enlarges: bool = True
    most_clips: float = math.inf
    share: float = 1.0

    def drawn(self, count: int) -> int:
        """Return how many of so many clips an epoch trains."""
        return int(min(count * self.share, self.most_clips))

    def drops(self, clip: Clip) -> str:
        """Return why a clip is left out before buckets are filled; "" if it is not."""
        if not clip.is_image and clip.num_frames < self.least_frames:
            return f"it has fewer than {self.least_frames} frames"
        return f"it has fewer than {self.least_pixels:,} pixels" if clip.width * clip.height < self.least_pixels else ""

    def in_words(self) -> Iterator[str]:
        """Yield the rules that hold for a clip of any size and length, for people."""
        if self.whole_batches:
            yield f"a bucket is cut to whole batches of {self.whole_batches}, and clips beyond them are left out"
        else:
            yield "no clip is left out for its bucket's last batch"
        if self.share < 1 or self.most_clips < math.inf:
            number = f"{self.share:g} of its clips" if self.share < 1 else f"{self.most_clips:g} clips"
            yield f"an epoch draws {number} of a folder"
        yield "smaller clips are enlarged" if self.enlarges else "smaller clips are trained at their own size"


class FormerTrainer(Protocol):
    """A trainer whose configs can be imported; the importer knows those in `importer.TRAINERS`.

    Attributes:
        name: Its name, as `--from` takes it.
        gives: Its files that can be given, for people.
        each_file_trains: Whether each of its files is a training, so that several are its stages.
    """

    name: str
    gives: str
    each_file_trains: bool = False

    def recognises(self, file: ConfigFile) -> bool:
        """Whether a file can be nobody else's."""

    def read(self, files: Sequence[ConfigFile]) -> FormerSettings:
        """Read its files, and those that they name; raises `UserError` for what is not one of its own."""

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        """Fill the draft of a recipe, and yield what became of each setting, and of each default that differs here."""

    def buckets(self, settings: FormerSettings, dataset: int) -> FormerBuckets | None:
        """Return what its buckets drop of a dataset; None if its source does not tell, or the settings make no sense."""

    def caption(self, settings: FormerSettings, beside: Beside) -> FormerCaption | None:
        """Return the captions that it shows with a clip; None if that is not known."""


def convert_by_rules(
    draft: ImportDraft, rules: Mapping[str, Rule], defaults: Mapping[str, Any], first: Sequence[str] = ()
) -> Iterator[ImportedKey]:
    """Convert all settings, and the defaults of those that the config leaves out.

    Names of rules have `*` for numbers, and may end in `.*` for all settings below; the most exact one is used. Settings
    that match a name in `first`, in its order, come before the others, which may depend on them. A setting without a rule is
    listed as unknown.
    """
    given = draft.settings.values
    every = [(key, value, False) for key, value in given.items()]
    every += [(key, value, True) for key, value in defaults.items() if key not in given]
    rank = {pattern: number for number, pattern in enumerate(first)}
    every.sort(key=lambda item: rank.get(without_numbers(item[0]), len(rank)))
    for key, value, is_default in every:
        draft.begin(key, is_default=is_default)
        rule = _rule(rules, key)
        fate, remark = _UNKNOWN if rule is None else apply_rule(rule, value, draft)
        value = "(not shown)" if _SECRET.search(key) else value
        if not is_default:
            yield ImportedKey(key, value, fate, remark)
        elif fate in (Fate.TAKEN, Fate.NOT_POSSIBLE, Fate.TO_FILL_IN):
            yield ImportedKey(key, value, fate, f"{remark} (a default of the trainer)")
    draft.begin("")
    for key, text in draft.settings.unread.items():
        yield ImportedKey(key, text, Fate.UNREAD, "it is not a plain value, and configs are not run")


_LONGEST_REMEDY = 200  # characters; a list of all models is no line
_SECRET = re.compile(r"(?:^|[._])(?:\w+_)?token$|secret|password|api_?key|access_key|credential|webhook", re.IGNORECASE)
_UNKNOWN = (Fate.NOT_POSSIBLE, "no such setting is known; look it up in docs/reference/recipe.md")


def apply_rule(rule: Rule, value: Any, draft: ImportDraft) -> Outcome:
    """Convert a value, which may be of any kind: strangers write lists for numbers, and words for both."""
    try:
        fate, remark = rule(value, draft)
        if draft.replaced and fate is Fate.TAKEN:
            return Fate.NOT_POSSIBLE, f"{remark}, for all datasets, in place of {draft.replaced}"
        return fate, remark
    except UserError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
        return Fate.TO_FILL_IN, "the value is not of the kind that the trainer takes: set it by hand"


def _rule(rules: Mapping[str, Rule], key: str) -> Rule | None:
    pattern = without_numbers(key)
    if (rule := rules.get(key) or rules.get(pattern)) is not None:
        return rule
    parts = pattern.split(".")
    ends = (".".join([*parts[:length], "*"]) for length in reversed(range(1, len(parts))))
    return next((rules[end] for end in ends if end in rules), None)


BATCHES_COUNT_ALIKE = "batches count alike, however many their clips and frames are"


def prepare(draft: ImportDraft, trainer: str, datasets: str, resolution: str) -> None:
    """Fill in what no setting of a trainer says: there are no clips held out, and each dataset has a folder and a size."""
    draft.begin("")
    draft.set("validation.split", 0.0, f"{trainer} holds no clips back")
    draft.set("train.loss_reduction", "micro_batch", BATCHES_COUNT_ALIKE)
    for number in range(max(draft.settings.count(datasets), 1)):
        draft.set(f"dataset.{number}.path", f"clips-{number + 1}", "to fill in")
    sizes.write(draft, [Sizes((resolution,))])
    draft.set("buckets.upscale", True, "smaller pictures are trained too")


def choose_model(draft: ImportDraft, preset: str, weights: str | None = None) -> str:
    """Put a model with its autoencoder, text encoder and objective into the draft, and return the assignment as text.

    `weights` are a pipeline's folder or hub id, or the denoiser's file, instead of the published ones. Where each comes
    from is the setting that is being converted.
    """
    draft.add(recipe_lines.model_lines(preset, registry.release_of(preset), weights))
    draft.add(recipe_lines.objective_lines(preset, registry.release_of(preset), weights))
    draft.set("model.name", preset)
    return f'model.name = "{preset}"' + (f", {draft.set('model.weights', weights)}" if weights else "")


def find_model(draft: ImportDraft, field: str, names: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """Return the preset that the first known of some names means, unless another one was asked for.

    `also` has the trainer's own names. Raises `UserError`, one line that names the model, if none is known.
    """
    if draft.request.model is not None:
        return registry.preset_name(draft.request.model)
    names = [name for name in names if name]
    for name in names:
        if (preset := (also or {}).get(name) or registry.find(name)) is not None:
            return preset
    try:
        return registry.preset_name(names[0] if names else "", field)
    except UserError as error:
        unknown = error.problem == "there is no such model"
        if unknown or len(error.remedy) > _LONGEST_REMEDY:
            problem = "this model is not trained here" if unknown else error.problem
            remedy = "docs/reference/models.md lists the models that are; --model NAME takes one of them in its place"
            error.reword(field=error.field, problem=problem, remedy=remedy)
        raise


def settle(draft: ImportDraft, keys: Iterable[ImportedKey]) -> list[ImportedKey]:
    """Remove what the recipe refuses, one value after the other, and return the keys with what is to be done about each.

    Raises:
        UserError: What is wrong is no value that a setting gave, such as a model without its needed companions.
    """
    told = [*keys, *datasets.needed(draft)]
    for _ in range(_MOST_REFUSED):
        if all(draft.get(f"train.{key}") in (None, NONE) for key in ("max_steps", "max_epochs")):
            draft.begin("")
            draft.set("train.max_steps", _STEPS_TO_FILL_IN, "to fill in")
        try:
            recipe_file.parse(draft.values())
            return told
        except UserError as error:
            refused = _place_of(error, draft)
            if refused is None:
                raise
            origin = draft.origin_of(refused)
            draft.remove(refused)
            remark = f"{refused} cannot have this value ({error.problem}): set it by hand; {error.remedy}"
            told = [replace(key, fate=Fate.TO_FILL_IN, remark=remark) if key.key == origin else key for key in told]
    return told


def _place_of(error: UserError, draft: ImportDraft) -> str | None:
    """Return the key of the draft that an error is about; errors may lack the number of an entry, or name a whole table."""
    field = (error.field or "").removeprefix("--")
    own = [key for key in draft.assigned() if draft.origin_of(key) and _without_number(key) not in _KEPT]
    candidates = [key for key in own if field in (key, _without_number(key)) or field.startswith(f"{key}.")]
    same = [key for key in candidates if draft.get(key) == error.value]
    if found := next(iter(same or candidates), None):
        return found
    return next((key for key in own if key.partition(".")[0] == field and _is_wrong(key, error, draft)), None)


def _is_wrong(key: str, error: UserError, draft: ImportDraft) -> bool:
    """Return whether a table would no longer be refused in the same way without one of its keys."""
    values = draft.values()
    table, _, name = key.partition(".")
    values[table] = {other: value for other, value in values[table].items() if other != name}
    try:
        recipe_file.parse(values)
    except UserError as other:
        return other.problem != error.problem
    return True


def _without_number(key: str) -> str:
    return ".".join(part for part in key.split(".") if not part.isdecimal())
