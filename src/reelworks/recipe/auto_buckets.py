"""`buckets = "auto"`: entries that a recipe leaves to its data, and that its run then keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reelworks.buckets import propose
from reelworks.buckets.assign import Clips, Reason
from reelworks.buckets.propose import Proposal, Suggestion
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry
from reelworks.recipe import recipe_file
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder

_AGAIN = "--set buckets.entries=again proposes new ones from the catalog as it is now"


@dataclass(frozen=True)
class Chosen:
    """Entries that a recipe does not give itself.

    Attributes:
        entries: The entries.
        proposal: What they were chosen by; None for those that a run keeps.
        run: The run folder that keeps them, or will.
    """

    entries: tuple[Suggestion, ...]
    proposal: Proposal | None
    run: str

    def lines(self) -> list[str]:
        """Say for people what was chosen and why."""
        if self.proposal is None:
            head = f"buckets: the {len(self.entries)} entries kept in {self.run}/recipe.toml; {_AGAIN}"
        else:
            head = f"buckets: {len(self.entries)} entries proposed, which the run then keeps; {self.proposal.headline()}"
        return [head, *(f"  {_line(entry)}" for entry in self.entries)]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        told = self.proposal.to_json() if self.proposal else {"entries": [asdict(e) for e in self.entries]}
        return {"kept": self.proposal is None, "lines": self.lines(), **told}


def _line(entry: Suggestion) -> str:
    text = f"{entry.resolution} ×{entry.num_frames}, batch size {entry.batch_size}, keep_prob {entry.keep_prob:g}"
    return f"{text}: {entry.why}" if entry.why else text


def choose(recipe: Recipe, geometry: Geometry, clips: Callable[[], Clips]) -> tuple[Recipe, Chosen]:
    """Find the entries of a recipe that leaves them open.

    Args:
        recipe: Its `buckets.entries` is "auto" or "refresh".
        geometry: What the model takes.
        clips: Gives the recipe's clips; asked only where entries are proposed.

    Returns:
        The recipe with plain entries, marked "keep"; and how they were found.

    Raises:
        UserError: No entry takes any clip, `max_tokens` is too small, or the run's recipe cannot be read.
    """
    kept = _kept(recipe)
    if kept is None:
        found = propose.propose(there := clips(), recipe.buckets, geometry)
        if not found.reached:
            raise _nothing(there)
        chosen = Chosen(found.entries, found, recipe.output)
    else:
        chosen = Chosen(kept, None, recipe.output)
    update = {
        "bucket": [entry.config() for entry in chosen.entries],
        "buckets": recipe.buckets.model_copy(update={"entries": "keep"}),
    }
    return recipe.model_copy(update=update), chosen


def _kept(recipe: Recipe) -> tuple[Suggestion, ...] | None:
    """Entries that the recipe's run was begun with; None where there is none, or others are asked for."""
    file = RunFolder(Path(recipe.output)).recipe_file
    if recipe.buckets.entries == "refresh" or not file.exists():
        return None
    then = recipe_file.load(file)
    limits = (then.buckets.max_tokens, then.buckets.max_batch_size)
    if then.buckets.entries != "keep" or limits != (
        recipe.buckets.max_tokens,
        recipe.buckets.max_batch_size,
    ):
        return None
    return tuple(
        Suggestion(config.resolution, frames, batch_size or then.buckets.batch_size, keep_prob)
        for config in then.bucket
        for frames, batch_size, keep_prob in zip(
            config.frames(), config.batch_sizes(), config.keep_probs(), strict=True
        )
    )


def _nothing(clips: Clips) -> UserError:
    reasons, counts = np.unique(clips.excluded, return_counts=True)
    named = {
        "smaller than any bucket" if reason == Reason.NONE else Reason(reason).label: count
        for reason, count in zip(reasons.tolist(), counts.tolist(), strict=True)
    }
    told = ", ".join(f"{count} {name}" for name, count in named.items())
    return UserError(
        f"there is no clip to propose entries for ({told or 'the datasets are empty'})",
        code="no-clip-to-propose-from",
        field="buckets",
        value="auto",
        remedy="mend the clips, or choose other datasets or a smaller autoencoder.stride",
    )
