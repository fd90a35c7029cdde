"""`reelworks import`: convert a config of another trainer to a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from reelworks.cli import show
from reelworks.cli.options import Json
from reelworks.compat.request import ImportRequest
from reelworks.core import units
from reelworks.core.errors import first_few, shown

if TYPE_CHECKING:
    from reelworks.compat.former import ClipAccount
    from reelworks.compat.rules import ImportedKey


def import_config(request: ImportRequest, json: Json = False) -> None:
    """Convert a config of another trainer to a recipe.

    Takes configs of ai-toolkit (YAML), diffusion-pipe (TOML), musubi-tuner and kohya's sd-scripts (dataset TOML,
    config_file, or a script with the command line), OneTrainer (JSON), Open-Sora (Python) and SimpleTuner (JSON or .env).
    They are read and never run; paths in them are looked for from the current folder, and beside the config.

    In the recipe, each value that comes from the config has its name there beside it. Prints what became of each key,
    and, if the folders are there, the clips that the trainer leaves out or repeats by its own rules, beside those here.
    """
    from reelworks.compat import importer

    with show.scan_progress(quiet=json) as on_scan:
        found = importer.convert(request, on_scan)
    if json:
        show.json(found)
        return
    _tell_keys(found.keys)
    if found.clips is not None:
        _tell_clips(found.clips)
    elif request.clips:
        show.line(f"clips: {found.without_clips}")
    show.line(found.recipe)


def _tell_keys(keys: Iterable[ImportedKey]) -> None:
    from reelworks.compat.rules import Fate

    by_fate = {fate: [key for key in keys if key.fate == fate] for fate in Fate}
    for fate, found in by_fate.items():
        if found:
            show.line(f"{fate} ({len(found)})")
        for key in found:
            show.line(f"  {key.key} = {shown(key.value)}: {key.remark}")


def _tell_clips(account: ClipAccount) -> None:
    show.line(f"{units.plural(account.clips, 'clip')} can be read")
    show.line(f"  {account.trainer} trains {account.former_trained} of them in an epoch")
    _tell_names("leaves out", account.left_out)
    _tell_names("trains in only some epochs", account.in_part)
    _tell_names("repeats", account.repeated)
    show.line(f"  this recipe trains {account.here_trained}")
    _tell_names("leaves out", account.here_left_out)
    for rule in account.rules:
        show.line(f"  by {account.trainer}: {rule}")


def _tell_names(verb: str, by_reason: Mapping[str, list[str]]) -> None:
    for reason, names in by_reason.items():
        show.line(f"    {verb} {len(names)}: {reason}: {first_few(names)}")
