"""`reelworks encode`: encode a recipe's clips and captions ahead of training, and look after what is stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option
from typer.core import TyperGroup

from reelworks.commands import show
from reelworks.commands.app import App
from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.options import (
    DataPath,
    EngineOption,
    Json,
    Overrides,
    RecipeArgument,
    load_recipe,
    named_stages,
)
from reelworks.core import machine, units

if TYPE_CHECKING:
    from reelworks.training.encoding.encode_worker import Progress

_SHOWN = 20


class _RunByDefault(TyperGroup):
    """A group whose first argument may be a recipe, which stands for `run RECIPE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the arguments."""
        known = args and (args[0] in self.commands or args[0].startswith("-"))
        return super().resolve_command(ctx, args if known else ["run", *args])


app = App(
    cls=_RunByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Encode clips and captions once, ahead of training; `reelworks encode RECIPE` is short for `encode run RECIPE`.",
)
FolderArgument = Annotated[Path, Argument(metavar="FOLDER", help="A folder of stored latents: encode.folder.")]


@app.command(doing="encoding", answers=False)
def run(
    recipe: RecipeArgument,
    limit: Annotated[int | None, Option(min=1)] = None,
    engine: EngineOption = "local",
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Encode all clips and captions that a recipe's training reads.

    Scans the data first. What is stored already is not encoded again; after a kill the same command goes on. Several
    processes share the work: start the command several times, or under torchrun. Says before it starts how much disk
    it takes, and names clips that cannot be read.

    Training reads the result if the recipe has `[encode] store = true`, and then also encodes by itself what is missing.

    With the engine of a cluster, the data is scanned and encoded by all its nodes, which must see the folders of data, catalog,
    store and recipe at the same place: an encoder on each GPU, or on each CPU if there are no GPUs.

    Args:
        limit: Encode only so many clips.
    """
    from reelworks.training.recipe import recipe_file

    whole, chosen = recipe_file.load_whole(recipe, overrides or [], data_path)
    from reelworks.training.precompute import ahead  # slow to import

    is_main = os.environ.get("RANK", "0") == "0"
    for index, (stage, name) in enumerate(named_stages(whole, json=json and chosen is None)):
        if chosen not in (None, index):
            continue
        if name and not json:
            show.line(f"stage {name}")
        scan, encoding = show.scan_progress(quiet=json), encode_progress(quiet=json or not is_main)
        with show.stdout_for_json(json), scan as on_scan, encoding as on_progress:
            report = ahead.encode_stage(
                whole, index, engine=engine, limit=limit, on_scan=on_scan, on_progress=on_progress
            )
        if not is_main:
            continue
        if json:
            show.json(report)
            continue
        encoded, captions = units.plural(report.encoded_clips, "clip"), units.plural(report.encoded_captions, "caption")
        show.line(f"{encoded} and {captions} encoded, {units.size(report.encoded_bytes)}, in {report.folder}")
        if not stage.encode.store:
            show.line("training reads them once the recipe has [encode] store = true")


@app.command("ls", doing="reading the store")
def list_entries(folder: FolderArgument, json: Json = False) -> None:
    """List what is stored by encoder and dtype."""
    from reelworks.training.encoding import upkeep
    from reelworks.training.precompute import ahead

    groups = upkeep.summarise(ahead.existing_store(folder))
    if json:
        show.json(groups)
        return
    rows = ((each.kind, each.encoder[:12], each.dtype, f"{each.entries:,}", units.size(each.bytes)) for each in groups)
    show.table(("kind", "encoder", "dtype", "entries", "bytes"), rows)


@app.command(doing="opening the store")
def verify(folder: FolderArgument, delete: Annotated[bool, Option("--delete")] = False, json: Json = False) -> None:
    """Read every stored tensor and compare its checksum; the exit code is 1 if one is damaged.

    Damaged ones that were not deleted are encoded again when training needs them.

    Args:
        delete: Delete damaged ones; `encode` encodes them again.
    """
    from reelworks.core import log
    from reelworks.training.encoding.upkeep import DamagedValue, StoreCheck
    from reelworks.training.precompute import ahead

    checked, damaged = 0, list[tuple[dict[str, Any], str]]()
    store = ahead.existing_store(folder)
    with log.stage("comparing checksums", lambda: units.plural(checked, "entry")):
        for row, problem in store.verify():
            checked += 1
            damaged += [(row, problem)] if problem else []
    if delete and damaged:
        store.remove({row["key"] for row, _ in damaged})
    if json:
        show.json(StoreCheck(checked, [DamagedValue(row["label"], row["kind"], problem) for row, problem in damaged]))
    else:
        for row, problem in damaged:
            show.line(f"damaged: {row['kind']} of {row['label']}: {problem}")
        show.line(f"{checked:,} entries checked, {len(damaged)} damaged")
    if damaged:
        raise Exit(ExitCode.FAILED)


@app.command(doing="looking for entries that no recipe reaches")
def prune(
    recipes: Annotated[list[Path], Argument(metavar="RECIPE...")],
    delete: Annotated[bool, Option("--delete")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Name entries that none of the recipes can reach, such as those of deleted files and former captions.

    Scans the data of each recipe first. All recipes must have the same folder; entries of a recipe that is not given are
    named too.

    Args:
        recipes: All recipes that share the folder.
        delete: Delete them; without it they are only named.
    """
    from reelworks.training.encoding import upkeep
    from reelworks.training.precompute import ahead
    from reelworks.training.recipe import recipe_file

    stages = (stage for path in recipes for stage in recipe_file.each_stage(load_recipe(path, overrides)))
    store, lost = ahead.unreached(stages)
    freed = store.remove({row["key"] for row in lost}) if delete else 0
    if json:
        named = [upkeep.OrphanedValue(row["kind"], row["label"], row["bytes"]) for row in lost]
        show.json(upkeep.PrunedStore(named, delete, freed))
        return
    for row in lost[:_SHOWN]:
        show.line(f"  {row['kind']} of {row['label']}, {units.size(row['bytes'])}")
    if len(lost) > _SHOWN:
        show.line(f"  and {len(lost) - _SHOWN:,} more")
    total = units.size(sum(row["bytes"] for row in lost))
    what = f"deleted, {units.size(freed)} freed" if delete else "no recipe reaches them; --delete deletes them"
    count = units.plural(len(lost), "entry")
    show.line(f"{count}, {total}: {what}" if lost else "every entry is reached")


@app.command("show", doing="drawing what is stored")
def show_entries(
    recipe: RecipeArgument,
    pictures: Annotated[Path, Option(metavar="FILE.png")] = Path("encoded.png"),
    clips: Annotated[int, Option(min=1)] = 12,
    overrides: Overrides = None,
) -> None:
    """Decode stored latents and draw their frames, to see what training reads.

    Args:
        pictures: Contact sheet to write.
        clips: Clips to show.
    """
    from reelworks.core import files
    from reelworks.training.assembly import build
    from reelworks.training.encoding import upkeep
    from reelworks.training.precompute import ahead

    loaded = load_recipe(recipe, overrides)
    source, chunks = ahead.reached(loaded)
    sheet = upkeep.contact_sheet(source, build.lazy_encoder(loaded, machine.default_device()), chunks, clips)
    if not sheet:
        show.line(f"nothing of this recipe is stored in {loaded.encoded_folder}")
        raise Exit(ExitCode.FAILED)
    files.write_for("--pictures", pictures, sheet)
    show.line(str(pictures))


@contextmanager
def encode_progress(quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of encoding."""
    with show.progress(quiet) as report:
        yield lambda encoding: report("encoding", "clips", encoding.done, encoding.total)
