"""Choose for each entry the least recomputation with which its micro-batches fit into a GPU's memory; torch-free.

It is chosen at the start of a run, which keeps it in its recipe as `buckets.gradient_checkpointing`, since the costs by which
ranks are balanced depend on it. A GPU with less memory that goes on with the run recomputes more, and trains the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from reelworks.core import device_memory, machine
from reelworks.core.errors import UserError
from reelworks.core.gpus import Gpu
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.data.distributed import layout
from reelworks.data.distributed.layout import Needs
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.memory import memory
from reelworks.training.memory.measurements import Measurements
from reelworks.training.memory.memory import Estimate, Memory, NetworkSizes
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import optimizer_names

# Each saves more memory than the one before, and takes longer.
LADDER: tuple[Recomputation, ...] = (False, "selective", 0.25, 0.5, 0.75, True)
_USUAL_LOCAL_RANKS = 8
_USABLE = 0.95  # of a GPU's memory, since estimates may be 2 % too low


@dataclass(frozen=True)
class Cards:
    """GPUs that train.

    Attributes:
        limit_bytes: Memory that each may fill: infinite on a CPU, None if it is not known.
        ranks: Their number, by which weights may be divided.
        local_ranks: Those of a node.
        measured: Networks and passes that were measured for them.
    """

    limit_bytes: float | None
    ranks: int = 1
    local_ranks: int = 1
    measured: Measurements = field(default_factory=Measurements, compare=False, repr=False)


def settle(data: RecipeData, cards: Cards) -> RecipeData:
    """Return the dataset of a recipe with the recomputation of its entries; see `settled`."""
    recipe = settled(data.recipe, memory.table_of_plans(data), cards)
    return data if recipe is data.recipe else data.with_buckets(recipe)


def settled(recipe: Recipe, buckets: BucketTable, cards: Cards) -> Recipe:
    """Return a recipe with the recomputation of each entry, where the model's key leaves it to memory.

    Entries that the recipe or its run names keep theirs; others stay open for GPUs of unknown memory.

    Raises:
        UserError: The recipe names an entry that it does not have.
    """
    if recipe.model.gradient_checkpointing != "auto":
        return recipe
    names = list(map(str, buckets.entries))
    own = recipe.buckets.gradient_checkpointing
    if strangers := sorted(own.keys() - set(names)):
        raise UserError(
            "there is no such entry",
            code="entry-not-there",
            field="buckets.gradient_checkpointing",
            value=strangers[0],
            remedy=f"write one of {', '.join(names)}, or remove it",
        )
    told = _of_run(recipe) | own
    if cards.limit_bytes is not None and any(name not in told for name in names):
        told = least(recipe, buckets, cards) | told
    return with_recomputation(recipe, {name: told[name] for name in names if name in told})


def with_recomputation(recipe: Recipe, of_entries: Mapping[str, Recomputation]) -> Recipe:
    """Return a recipe with the recomputation of its entries."""
    buckets = recipe.buckets.model_copy(update={"gradient_checkpointing": dict(of_entries)})
    return recipe.model_copy(update={"buckets": buckets})


def _of_run(recipe: Recipe) -> dict[str, Recomputation]:
    """Return what the run of a recipe last chose for the same network, entries and limit; nothing if it did not."""
    run = RunFolder(Path(recipe.output))
    # Of a run with stages, recipe.toml has what was given for all of them; each start keeps what its stage came to.
    for name in dict.fromkeys(start["recipe"] for start in reversed(list(events.read(run.events_file, "start")))):
        stored = recipe_file.load(run.recipes_folder / name)
        same = all(getattr(stored, key) == getattr(recipe, key) for key in ("model", "lora", "bucket"))
        if same and stored.train.memory_gb == recipe.train.memory_gb:
            return stored.buckets.gradient_checkpointing
    return {}


def limit(recipe: Recipe, device_bytes: int | None) -> int | None:
    """Return the bytes that a training may fill on GPUs of so much memory; None if it is not known."""
    if recipe.train.memory_gb is not None:
        return round(1e9 * recipe.train.memory_gb)
    return None if device_bytes is None else round(_USABLE * device_bytes)


def cards_for(recipe: Recipe, ranks: int, gpu: Gpu | None = None) -> Cards:
    """Return cards of a kind, or like that of this machine, which is asked only if recipe leaves recomputation open."""
    local = min(ranks, _USUAL_LOCAL_RANKS)
    if gpu is not None:
        return Cards(limit(recipe, round(1e9 * gpu.memory_gb)), ranks, local)
    if recipe.model.gradient_checkpointing != "auto" or recipe.train.memory_gb is not None or not machine.has_gpu():
        return Cards(limit(recipe, None), ranks, local)
    return Cards(limit(recipe, device_memory.total_bytes(machine.default_device(0))), ranks, local)


def least(
    recipe: Recipe,
    buckets: BucketTable,
    cards: Cards,
    among: Callable[[Bucket], tuple[Recomputation, ...]] = lambda bucket: LADDER,
) -> dict[str, Recomputation]:
    """Return the least recomputation by entry with which its largest bucket fits; the most where nothing does.

    Where activations cannot be measured, all is recomputed. Entries without buckets are left out.
    """
    largest = memory.largest_of_entries(buckets)
    return {str(buckets.entries[b.entry]): _least(recipe, b, cards, among(b)) for b in largest}


def _least(recipe: Recipe, bucket: Bucket, cards: Cards, rungs: tuple[Recomputation, ...]) -> Recomputation:
    measured = cards.measured
    assert cards.limit_bytes is not None
    if cards.limit_bytes == math.inf:
        return rungs[0]
    if not measured.measures(recipe):
        return rungs[-1]
    sizes = measured.sizes(recipe)
    fixed = memory.without_activations(recipe, sizes, _shards(recipe, sizes, cards))
    if _need(recipe, bucket, rungs[0], fixed, measured) <= cards.limit_bytes:
        return rungs[0]
    # Where nothing fits, as when the encoders alone need more, no more is recomputed than lowers the need.
    limit = max(cards.limit_bytes, _need(recipe, bucket, rungs[-1], fixed, measured))
    return next(rung for rung in rungs if _need(recipe, bucket, rung, fixed, measured) <= limit)


def estimate(recipe: Recipe, buckets: BucketTable, cards: Cards) -> Estimate:
    """Estimate memory and work of a recipe on one of some cards of known memory, with its share of the weights."""
    return cards.measured.estimate(recipe, buckets, _shards(recipe, cards.measured.sizes(recipe), cards))


def _shards(recipe: Recipe, sizes: NetworkSizes, cards: Cards) -> int:
    """Return how many cards share a copy of the weights."""
    assert cards.limit_bytes is not None
    state = sizes.base_bytes + 4 * 3 * sizes.trained_parameters + sizes.optimizer_bytes  # weights, gradients, average
    of_optimizer = optimizer_names.OPTIMIZERS[recipe.train.optimizer].whole
    needs = Needs(recipe.lora is not None, state, int(cards.limit_bytes), of_optimizer)
    return layout.choose(recipe.parallel, cards.ranks, cards.local_ranks, needs)[0].shards


def _need(recipe: Recipe, bucket: Bucket, recomputed: Recomputation, fixed: Memory, measured: Measurements) -> int:
    one = measured.one_pass(recipe, replace(bucket, recomputation=recomputed))
    return memory.with_activations(recipe, fixed, one.peak_bytes, recomputed).total


def raised(data: RecipeData, cards: Cards) -> tuple[Recomputation, ...]:
    """Return the recomputation of each bucket on GPUs of this start: as planned, or more where these have less memory.

    None at all where the recipe does not leave it to buckets.
    """
    if data.recipe.model.gradient_checkpointing != "auto":
        return ()
    planned = {bucket.name: memory.recomputation(data.recipe, bucket) for bucket in data.table.buckets}
    if cards.limit_bytes is None:
        return tuple(planned.values())

    def rungs(bucket: Bucket) -> tuple[Recomputation, ...]:
        own = planned[bucket.name]
        return (own, *(rung for rung in LADDER if _rank(rung) > _rank(own)))

    found = least(data.recipe, memory.table_of_plans(data), cards, among=rungs)
    return tuple(found[str(data.table.entries[bucket.entry])] for bucket in data.table.buckets)


def _rank(recomputed: Recomputation) -> float:
    """Return a number that is larger the more is recomputed."""
    if isinstance(recomputed, str):
        return 0.0
    return float(recomputed) if recomputed else -1.0


def lines_of_start(data: RecipeData, of_buckets: Sequence[Recomputation]) -> list[str]:
    """Describe for people what a start recomputes, and where that is more than was planned."""
    entries = [str(data.table.entries[bucket.entry]) for bucket in data.table.buckets]
    own = dict(zip(entries, of_buckets, strict=False))  # none at all, or that of each
    planned = data.recipe.buckets.gradient_checkpointing
    more = [name for name, recomputed in own.items() if recomputed != planned.get(name, True)]
    less_memory = f"more than was planned of {', '.join(more)}, since these GPUs have less memory; steps take longer"
    return [*lines_of_entries(own), *([less_memory] if more else [])]


def lines_of_entries(of_entries: Mapping[str, Recomputation]) -> list[str]:
    """Describe for people what is recomputed of entries; nothing if none is named."""
    names: dict[str, list[str]] = {}
    for name, recomputed in of_entries.items():
        names.setdefault(to_text(recomputed), []).append(name)
    parts = [f"{text} ({', '.join(own)})" for text, own in names.items()]
    return [f"recomputed in backward passes: {'; '.join(parts)}"] if parts else []


def lines_of_plan(of_entries: Mapping[str, Recomputation] | None) -> list[str]:
    """Describe the same, and how to learn it where the memory of the GPUs is not known."""
    if of_entries is None:
        return ["recomputed in backward passes: by the memory of the GPU, which plan --gpu or train.memory_gb tells"]
    return lines_of_entries(of_entries)


def to_text(recomputed: Recomputation) -> str:
    """Return what is recomputed, in words."""
    if isinstance(recomputed, float):
        return f"all but the inputs of {recomputed:.0%} of the blocks"
    if recomputed == "selective":
        return "all but products and attention"
    return "all but the inputs of blocks" if recomputed else "nothing"
