"""Encode recipes ahead of their training, in these processes or on a cluster, and find what their stores hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reelworks.core import executors
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.distributed import mesh
from reelworks.data.loader.left_out import by_reason
from reelworks.training.encoding import encode, reachable, upkeep
from reelworks.training.encoding.encode import EncodingReport
from reelworks.training.encoding.encode_worker import Progress
from reelworks.training.encoding.reachable import Chunk
from reelworks.training.encoding.store import EncodedStore
from reelworks.training.encoding.stored_batches import StoredLatents
from reelworks.training.plan import plan_forecast, rejections
from reelworks.training.precompute import encode_on_cluster, encoding
from reelworks.training.preflight import stage_forecast
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe


def storing(recipe: Recipe) -> Recipe:
    """Return a recipe as if it stored latents."""
    return recipe.model_copy(update={"encode": recipe.encode.model_copy(update={"store": True})})


def encode_stage(
    whole: Recipe,
    index: int,
    *,
    engine: str,
    limit: int | None,
    on_scan: Callable[[ScanProgress], None],
    on_progress: Callable[[Progress], None],
) -> EncodingReport:
    """Scan the data of a recipe, or of one of its stages, and encode what training reads of it and is not stored yet.

    The processes that torchrun started share the work, and each returns what it did. With another engine than "local", its
    workers scan and encode.

    Raises:
        UserError: The disk has too little space, or there is no such engine, or it cannot be used.
    """
    recipe = storing(recipe_file.of_stage(whole, index) if whole.stage else whole)
    if engine != executors.LOCAL:
        with executors.connect_elsewhere(engine, for_actors=True) as cluster:
            dataset.scan_recipe(recipe, on_scan, engine=engine)
            data = _open(whole, index, 1)
            _tell_of_left_out(data)
            source, spec = encoding.open_store(data), plan_forecast.plan_spec(data)
            job = encoding.build_encoding_job(data, source, torch.device("cpu"), spec, limit=limit)
            done = encode_on_cluster.encode_missing(data, job, cluster, limit=limit, on_progress=on_progress)
    else:
        with mesh.join() as world:
            if world.is_main:
                dataset.scan_recipe(recipe, on_scan)
            world.wait()
            data = _open(whole, index, world.size)
            if world.is_main:
                _tell_of_left_out(data)
            source, spec = encoding.open_store(data), plan_forecast.plan_spec(data, world.size)
            job = encoding.build_encoding_job(data, source, world.device, spec, limit=limit)
            done = encoding.encode_missing(job, on_progress=on_progress)
            world.wait()
    return encode.report(Path(recipe.encoded_folder), *done)


def _open(whole: Recipe, index: int, world: int) -> RecipeData:
    """Open the data of a recipe or of one of its stages, with the epochs that its training comes to on `world` GPUs."""
    start = stage_forecast.start_of(whole, index, world)
    recipe = recipe_file.of_stage(whole, index, start) if whole.stage else whole
    return replace(RecipeData.open(storing(recipe)), stage=start)


def _tell_of_left_out(data: RecipeData) -> None:
    """Name clips that cannot be trained, and so are not encoded."""
    found = by_reason(*data.assignment(data.stage.epoch))
    everything = "reelworks plan RECIPE --rejected FILE lists all clips that are left out"
    for line in rejections.lines(rejections.counts(data, found), rejections.named(data, found), everything):
        logger.info(line)


def existing_store(folder: Path) -> EncodedStore:
    """Open a store.

    Raises:
        UserError: There is none in this folder.
    """
    if not (folder / "format.json").is_file():
        raise UserError(
            "there are no stored latents in this folder",
            code="no-encoded",
            field="FOLDER",
            value=str(folder),
            remedy="name the folder that `reelworks encode RECIPE` prints",
        )
    return EncodedStore.open(folder)


def reached(recipe: Recipe) -> tuple[StoredLatents, list[Chunk]]:
    """Scan the data of a recipe, and return its store, which must be there, with all clips that some epoch may train."""
    existing_store(Path(recipe.encoded_folder))
    dataset.scan_recipe(recipe)
    data = RecipeData.open(storing(recipe))
    return encoding.open_store(data), reachable.chunks(data, reachable.in_any_epoch(data))


def unreached(recipes: Iterable[Recipe]) -> tuple[EncodedStore, list[dict[str, Any]]]:
    """Return the store of some recipes, and the rows of its entries that none of them can reach.

    Raises:
        UserError: The recipes have different stores.
    """
    keys, store = set[str](), None
    for recipe in recipes:
        source, chunks = reached(recipe)
        if store is not None and store.path.resolve() != source.store.path.resolve():
            raise UserError(
                f"the recipes before it store in {store.path}",
                code="encoded-folders-differ",
                field="encode.folder",
                value=recipe.encoded_folder,
                remedy="prune each folder by itself, with the recipes that share it",
            )
        store = source.store
        keys |= upkeep.reachable_keys(source, chunks)
    assert store is not None, "at least one recipe is given"
    return store, upkeep.orphans(store, keys)
