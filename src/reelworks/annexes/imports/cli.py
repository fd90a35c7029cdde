"""`reelworks import`: convert a config of another trainer to a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from typer import Option

from reelworks.annexes.imports.annex import ANNEX
from reelworks.annexes.imports.request import ImportRequest
from reelworks.commands import show
from reelworks.commands.options import Json
from reelworks.core import units
from reelworks.core.errors import first_few, shown

if TYPE_CHECKING:
    from reelworks.annexes.imports.former import ClipAccount
    from reelworks.annexes.imports.rules import ImportedKey


def import_config(
    request: ImportRequest,
    json: Json = False,
    every: Annotated[
        bool, Option("--all", help="Show settings too that are the same by default, or without meaning here.")
    ] = False,
) -> None:
    """Convert a config of another trainer to a recipe.

    Takes configs of ai-toolkit (YAML), diffusion-pipe (TOML), musubi-tuner and kohya's sd-scripts (dataset TOML,
    config_file, or a script with the command line), OneTrainer (JSON), Open-Sora (Python) and SimpleTuner (JSON or .env).
    They are read and never run; paths in them are looked for from the current folder, and beside the config.

    In the recipe, each value that comes from the config has its name there beside it. Prints what is to be done, what
    became of each key, and, if the folders are there, the clips that the trainer's buckets leave out, or that it shows with
    another caption, beside those here.
    """
    ANNEX.require_packages()
    from reelworks.annexes.imports import importer

    with show.scan_progress(quiet=json) as on_scan:
        found = importer.convert(request, on_scan)
    if json:
        show.json(found)
        return
    _tell_keys(found.keys, every=every)
    if found.clips is not None:
        _tell_clips(found.clips)
    elif request.clips:
        show.line(f"clips: {found.without_clips}")
    show.line(found.recipe, is_file=True)


def _tell_keys(keys: Iterable[ImportedKey], *, every: bool) -> None:
    """Tell what is to be done first, and leave out what makes no difference."""
    from reelworks.annexes.imports.rules import Fate

    order = (Fate.TO_FILL_IN, Fate.UNREAD, Fate.NOT_POSSIBLE, Fate.TAKEN, Fate.DEFAULT, Fate.NO_MEANING)
    by_fate = {fate: [key for key in keys if key.fate == fate] for fate in order}
    brief = () if every else order[4:]
    for fate, found in by_fate.items():
        if found and fate not in brief:
            show.line(f"{fate} ({len(found)})")
            for line in _lines(found, every=every):
                show.line(line)
    if others := ", ".join(f"{fate} ({len(by_fate[fate])})" for fate in brief if by_fate[fate]):
        show.line(f"{others}: --all shows them")


def _lines(keys: Iterable[ImportedKey], *, every: bool) -> Iterator[str]:
    """Yield a line for each setting, and one for those of several datasets that became the same."""
    groups: dict[tuple[str, ...], list[ImportedKey]] = {}
    for key in keys:
        alike = (key.key,) if every else (_any_number(key.key), shown(key.value), _any_number(key.remark))
        groups.setdefault(alike, []).append(key)
    for own in groups.values():
        name, remark, times = own[0].key, own[0].remark, ""
        if len(own) > 1:
            name, remark, times = _any_number(name), _any_number(remark), f" ({len(own)} times)"
        yield f"  {name} = {shown(own[0].value)}{times}: {remark}"


def _any_number(text: str) -> str:
    return re.sub(r"(?<=[a-z])\.\d+(?=\.|$)", ".*", text)


def _tell_clips(account: ClipAccount) -> None:
    show.line(f"{units.plural(account.clips, 'clip')} can be read")
    show.line(f"  {account.trainer} trains {account.former_trained} of them in an epoch")
    _tell_names("leaves out", account.left_out)
    for bucket, number in account.rest.items():
        show.line(f"    leaves out {number} in each epoch: they fill no batch of {bucket}")
    _tell_names("has another caption for", account.other_captions)
    show.line(f"  this recipe trains {account.here_trained}")
    _tell_names("leaves out", account.here_left_out)
    for why in account.not_told:
        show.line(f"  not told: {why}")
    for rule in account.rules:
        show.line(f"  by {account.trainer}: {rule}")


def _tell_names(verb: str, by_reason: Mapping[str, list[str]]) -> None:
    for reason, names in by_reason.items():
        show.line(f"    {verb} {len(names)}: {reason}: {first_few(names)}")
