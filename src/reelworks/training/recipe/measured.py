"""Put numbers in place of what a recipe leaves to measurements: batch sizes, and the ranks that share clips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.data.buckets import degrees, table, tuned
from reelworks.data.buckets.config import BucketEntryConfig
from reelworks.data.buckets.degrees import Degree, Exchange, RankLimits
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.buckets.table import BucketTable
from reelworks.data.schedule.cost_fit import CostModel
from reelworks.models import components
from reelworks.models.sequence import sequence_limits
from reelworks.training.recipe.recipe import Recipe


def with_numbers(recipe: Recipe) -> Recipe:
    """Return the recipe with numbers for batch sizes and sequence degrees that were measured, as its run keeps it."""
    shared = _with_degrees(recipe)
    entries, settings = tuned.measured(shared.bucket, recipe.buckets, recipe.train.step_seconds)
    if recipe.buckets.tuned is not None and recipe.model.gradient_checkpointing == "auto":
        settings = settings.model_copy(update={"gradient_checkpointing": _recomputation(recipe, recipe.buckets.tuned)})
    # The bound is in the numbers now.
    train = recipe.train if entries == recipe.bucket else recipe.train.model_copy(update={"step_seconds": None})
    return shared.model_copy(update={"bucket": entries, "buckets": settings, "train": train})


def _recomputation(recipe: Recipe, path: str) -> dict[str, Recomputation]:
    """Return what the recipe says of its entries, and what was measured of those whose batch size was."""
    sizes = {
        f"{entry.resolution} ×{frames}": size or recipe.buckets.batch_size
        for entry in recipe.bucket
        for frames, size in zip(entry.frames(), entry.batch_sizes(), strict=True)
    }
    found = tuned.read_recomputation(path)
    measured = {name: found[name] for name, size in sizes.items() if size == "auto" and name in found}
    return measured | recipe.buckets.gradient_checkpointing


def exchange(recipe: Recipe) -> Exchange | None:
    """Return the exchanges of a recipe's network; None if no clip is shared."""
    if recipe.parallel.group_size == 1:
        return None
    bytes_per_element = 4 if recipe.precision.compute == "float32" else 2
    found = sequence_limits.exchange(recipe.model, recipe.autoencoder, recipe.text_encoder, bytes_per_element)
    link = recipe.parallel.link_gb_per_second
    return found if found is None or link is None else replace(found, link_bytes_per_second=1e9 * link)


def _with_degrees(recipe: Recipe) -> Recipe:
    """Return the recipe with numbers of ranks in place of "auto", and batch sizes that suit them."""
    parallel, path = recipe.parallel, recipe.buckets.tuned
    if parallel.sequence_degree != "auto":
        return recipe
    if path is None:
        raise UserError(
            "how many ranks share a clip is chosen by measured memory and time, and the recipe names no file of them",
            code="degrees-not-measured",
            field="buckets.tuned",
            remedy="run `reelworks tune` on the recipe, on a GPU or with --estimate, or give parallel.sequence_degree a number",
        )
    chooser = _Chooser.of_recipe(recipe, path)
    number = parallel.model_copy(update={"sequence_degree": parallel.group_size, "max_sequence_degree": None})
    return recipe.model_copy(update={"bucket": [chooser.entry(e) for e in recipe.bucket], "parallel": number})


@dataclass(frozen=True)
class _Chooser:
    """Chooses the ranks that share the clips of entries."""

    recipe: Recipe
    buckets: BucketTable
    model: CostModel
    limits: RankLimits
    exchange: Exchange
    batch_sizes: dict[str, int]  # by entry, measured on one rank

    @classmethod
    def of_recipe(cls, recipe: Recipe, path: str) -> _Chooser:
        """Read the measurements of a recipe."""
        geometry = components.geometry(recipe.model, recipe.autoencoder)
        buckets = table.build(*tuned.unmeasured(recipe.bucket, recipe.buckets), geometry)
        model, limits = tuned.read_limits(path, recipe.train.step_seconds)
        exchanges = exchange(recipe) or Exchange(0, 0)  # of a network that one rank trains
        return cls(recipe, buckets, model, limits, exchanges, tuned.read(path))

    def entry(self, entry: BucketEntryConfig) -> BucketEntryConfig:
        """Return an entry with numbers."""
        chosen = [
            self._choose(f"{entry.resolution} ×{frames}", size or self.recipe.buckets.batch_size, own)
            for frames, size, own in zip(entry.frames(), entry.batch_sizes(), entry.sequence_degrees(), strict=True)
        ]
        update = {"batch_size": [c.batch_size for c in chosen], "sequence_degree": [c.degree for c in chosen]}
        is_list = isinstance(entry.num_frames, list)
        return entry.model_copy(update=update if is_list else {key: values[0] for key, values in update.items()})

    def _choose(self, name: str, batch_size: int | Literal["auto"], own: int | None) -> Degree:
        tokens = [b.tokens for b in self.buckets.buckets if str(self.buckets.entries[b.entry]) == name]
        given = None if batch_size == "auto" else batch_size
        ranks = sequence_limits.degrees_of(self.recipe.model, tokens, self.recipe.parallel.degrees())
        found = degrees.choose(
            max(tokens),
            ranks if own is None else [own],
            self.model,
            self.exchange,
            self.limits,
            given,
            self.batch_sizes.get(name),
        )
        if given is None and not found.fits:
            raise UserError(
                f"not even one clip of {name} fits into the memory of {units.plural(found.degree, 'rank')}, by what was measured",
                code="no-degree-fits",
                field=self.recipe.parallel.group_field,
                value=self.recipe.parallel.group_size,
                remedy="raise it, set model.gradient_checkpointing = true, or leave the entry out",
            )
        return found
