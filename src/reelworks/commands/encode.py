"""`reelworks encode`: encode a recipe's clips and captions ahead of training, and look after what is stored."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
from reelworks.core import machine, terminal, units

if TYPE_CHECKING:
    from reelworks.core.ray_cluster import Engine
    from reelworks.training.encoding.precompute.encode import EncodingForecast
    from reelworks.training.encoding.precompute.encode_worker import Progress
    from reelworks.training.encoding.precompute.reachable import Chunk
    from reelworks.training.encoding.stored_batches import StoredLatents
    from reelworks.training.recipe.dataset import RecipeData
    from reelworks.training.recipe.recipe import Recipe

_LINE_SECONDS = 10.0
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
    limit: Annotated[int | None, Option(min=1, help="Encode only so many clips.")] = None,
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

    With --engine ray, the data is scanned and encoded by all nodes of a cluster, which must see the folders of data, catalog,
    store and recipe at the same place: an encoder on each GPU, or on each CPU if there are no GPUs.
    """
    from reelworks.training.recipe import recipe_file

    whole, chosen = recipe_file.load_whole(recipe, overrides or [], data_path)
    for index, (stage, name) in enumerate(named_stages(whole, json=json and chosen is None)):
        if chosen in (None, index):
            if name and not json:
                show.line(f"stage {name}")
            _encode_one(stage, whole, index, limit, engine, json)


def _encode_one(recipe: Recipe, whole: Recipe, index: int, limit: int | None, engine: Engine, json: bool) -> None:
    """Encode a recipe, which is one stage of the `whole` one if that has stages."""
    loaded, stores = _storing(recipe)
    main = os.environ.get("RANK", "0") == "0"
    with show.stdout_for_json(json):
        work = _on_cluster if engine == "ray" else _here
        forecast, progress = work(loaded, partial(_open, whole, index), limit, json)
    if not main:
        return
    encoded = progress.done - len(progress.failures)
    if json:
        from reelworks.training.encoding.precompute import encode

        show.json(encode.report(Path(loaded.encoded_folder), forecast, progress))
        return
    show.line(
        f"{units.plural(encoded, 'clip')} and {units.plural(progress.captions, 'caption')} encoded, "
        f"{units.size(progress.bytes)}, in {loaded.encoded_folder}"
    )
    if not stores:
        show.line("training reads them once the recipe has [encode] store = true")


def _open(whole: Recipe, index: int, world: int) -> RecipeData:
    """Open the data of a recipe or of one of its stages, with the epochs that its training comes to on `world` GPUs."""
    from reelworks.training.preflight import stage_forecast
    from reelworks.training.recipe import recipe_file
    from reelworks.training.recipe.dataset import RecipeData

    start = stage_forecast.start_of(whole, index, world)
    recipe = recipe_file.of_stage(whole, index, start) if whole.stage else whole
    return replace(RecipeData.open(_storing(recipe)[0]), stage=start)


def _here(
    recipe: Recipe, opened: Callable[[int], RecipeData], limit: int | None, quiet: bool
) -> tuple[EncodingForecast, Progress]:
    """Scan and encode in this process, and in those that torchrun started beside it."""
    from reelworks.data.distributed import mesh
    from reelworks.training.plan import plan_forecast
    from reelworks.training.precompute import encoding
    from reelworks.training.recipe import dataset

    with mesh.join() as world:
        if world.is_main:
            with show.scan_progress(quiet=quiet) as on_scan:
                dataset.scan_recipe(recipe, on_scan)
        world.wait()
        data = opened(world.size)
        source = encoding.open_store(data)
        with encode_progress(quiet=quiet or not world.is_main) as on_progress:
            spec = plan_forecast.plan_spec(data, world.size)
            job = encoding.build_encoding_job(data, source, world.device, spec, limit=limit, on_progress=on_progress)
            done = encoding.encode_missing(job)
        world.wait()
    return done


def _on_cluster(
    recipe: Recipe, opened: Callable[[int], RecipeData], limit: int | None, quiet: bool
) -> tuple[EncodingForecast, Progress]:
    """Scan and encode on the nodes of a Ray cluster."""
    import torch

    from reelworks.core import launcher, ray_cluster
    from reelworks.core.errors import UserError
    from reelworks.training.plan import plan_forecast
    from reelworks.training.precompute import encode_on_cluster, encoding
    from reelworks.training.recipe import dataset

    if launcher.number("WORLD_SIZE") > 1:
        raise UserError(
            "torchrun has started several processes, and each would use the whole cluster",
            code="ray-under-torchrun",
            field="--engine",
            value="ray",
            remedy="start the command by itself: it uses all GPUs of the cluster",
        )
    with ray_cluster.connect() as cluster:
        with show.scan_progress(quiet=quiet) as on_scan:
            dataset.scan_recipe(recipe, on_scan, engine="ray")
        data = opened(1)
        source = encoding.open_store(data)
        job = encoding.build_encoding_job(data, source, torch.device("cpu"), plan_forecast.plan_spec(data), limit=limit)
        with encode_progress(quiet=quiet) as on_progress:
            return encode_on_cluster.encode_missing(data, job, cluster, limit=limit, on_progress=on_progress)


@app.command("ls", doing="reading the store")
def list_entries(folder: FolderArgument, json: Json = False) -> None:
    """List what is stored by encoder and dtype."""
    from reelworks.training.encoding import upkeep

    groups = upkeep.summarise(_existing(folder))
    if json:
        show.json(groups)
        return
    table = show.new_table("kind", "encoder", "dtype", "entries", "bytes")
    for group in groups:
        table.add_row(group.kind, group.encoder[:12], group.dtype, f"{group.entries:,}", units.size(group.bytes))
    show.print_table(table)


@app.command(doing="opening the store")
def verify(folder: FolderArgument, json: Json = False) -> None:
    """Read every stored tensor and compare its checksum; the exit code is 1 if one is damaged.

    Damaged ones are encoded again when they are needed.
    """
    from reelworks.core import log
    from reelworks.training.encoding.upkeep import DamagedValue, StoreCheck

    checked, damaged = 0, list[DamagedValue]()
    with log.stage("comparing checksums", lambda: units.plural(checked, "entry")):
        for row, problem in _existing(folder).verify():
            checked += 1
            if problem:
                damaged.append(DamagedValue(row["label"], row["kind"], problem))
    if json:
        show.json(StoreCheck(checked, damaged))
    else:
        for each in damaged:
            show.line(f"damaged: {each.kind} of {each.clip}: {each.problem}")
        show.line(f"{checked:,} entries checked, {len(damaged)} damaged")
    if damaged:
        raise Exit(ExitCode.FAILED)


@app.command(doing="looking for entries that no recipe reaches")
def prune(
    recipes: Annotated[list[Path], Argument(metavar="RECIPE...", help="All recipes that share the folder.")],
    delete: Annotated[bool, Option("--delete", help="Delete them; without it they are only named.")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Name entries that none of the recipes can reach, such as those of deleted files and former captions.

    Scans the data of each recipe first. All recipes must have the same folder; entries of a recipe that is not given are
    named too.
    """
    from reelworks.training.encoding import upkeep
    from reelworks.training.recipe import recipe_file

    reached, source = set[str](), None
    for path in recipes:
        for stage in recipe_file.each_stage(load_recipe(path, overrides)):
            source, chunks = _source_of(_storing(stage)[0], source)
            reached |= upkeep.reachable_keys(source, chunks)
    assert source is not None, "at least one recipe is given"
    lost = upkeep.orphans(source.store, reached)
    freed = source.store.remove({row["key"] for row in lost}) if delete else 0
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
    pictures: Annotated[Path, Option(metavar="FILE.png", help="Contact sheet to write.")] = Path("encoded.png"),
    clips: Annotated[int, Option(min=1, help="Clips to show.")] = 12,
    overrides: Overrides = None,
) -> None:
    """Decode stored latents and draw their frames, to see what training reads."""
    from reelworks.core import files
    from reelworks.training.encoding import upkeep
    from reelworks.training.precompute import encoding

    loaded = _storing(load_recipe(recipe, overrides))[0]
    source, chunks = _source_of(loaded, None)
    device = machine.default_device()
    sheet = upkeep.contact_sheet(source, encoding.lazy_encoder(loaded, device), chunks, clips)
    if not sheet:
        show.line(f"nothing of this recipe is stored in {loaded.encoded_folder}")
        raise Exit(ExitCode.FAILED)
    files.write_for("--pictures", pictures, sheet)
    show.line(str(pictures))


def _storing(recipe: Recipe) -> tuple[Recipe, bool]:
    """Return a recipe as if it stored latents, and whether it does."""
    encode = recipe.encode.model_copy(update={"store": True})
    return recipe.model_copy(update={"encode": encode}), recipe.encode.store


def _existing(folder: Path) -> Any:
    from reelworks.core.errors import UserError
    from reelworks.training.encoding.store import EncodedStore

    if not (folder / "format.json").is_file():
        raise UserError(
            "there are no stored latents in this folder",
            code="no-encoded",
            field="FOLDER",
            value=str(folder),
            remedy="name the folder that `reelworks encode RECIPE` prints",
        )
    return EncodedStore.open(folder)


def _source_of(recipe: Recipe, other: StoredLatents | None) -> tuple[StoredLatents, list[Chunk]]:
    from reelworks.core.errors import UserError
    from reelworks.training.encoding.precompute import reachable
    from reelworks.training.precompute import encoding
    from reelworks.training.recipe import dataset
    from reelworks.training.recipe.dataset import RecipeData

    _existing(Path(recipe.encoded_folder))
    dataset.scan_recipe(recipe)
    data = RecipeData.open(recipe)
    source = encoding.open_store(data)
    if other is not None and other.store.path.resolve() != source.store.path.resolve():
        raise UserError(
            f"the recipes before it store in {other.store.path}",
            code="encoded-folders-differ",
            field="encode.folder",
            value=recipe.encoded_folder,
            remedy="prune each folder by itself, with the recipes that share it",
        )
    return source, reachable.chunks(data, reachable.in_any_epoch(data))


@contextmanager
def encode_progress(quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar with the time left, or a line every ten seconds without a terminal."""
    from rich import progress as rich_progress

    console = terminal.console()
    p = rich_progress
    columns = (p.TextColumn("encoding"), p.BarColumn(), p.MofNCompleteColumn(), p.TimeRemainingColumn())
    bar = p.Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    task, last = bar.add_task("encoding", total=None), [time.monotonic()]

    def report(progress: Progress) -> None:
        bar.start()
        bar.update(task, total=progress.total, completed=progress.done)
        if not console.is_terminal and not quiet and time.monotonic() - last[0] >= _LINE_SECONDS:
            last[0] = time.monotonic()
            left = progress.seconds_left
            rest = "" if left is None else f", about {units.duration(left)} left"
            show.line(f"encoding: {progress.done:,} of {progress.total:,} clips{rest}")

    try:
        yield report
    finally:
        bar.stop()
