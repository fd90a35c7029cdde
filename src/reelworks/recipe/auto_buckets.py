"""`buckets = "auto"`: propose bucket entries from the data, which the run then stores in its recipe."""

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

_AGAIN = "--set buckets.entries=refresh proposes new ones from the present catalog"


@dataclass(frozen=True)
class Chosen:
    """Bucket entries that were chosen for a recipe that has none of its own.

    Attributes:
        entries: The entries.
        proposal: The proposal that they come from; None if they come from the run's recipe.
        run: Run folder whose recipe has the entries, or will have them.
    """

    entries: tuple[Suggestion, ...]
    proposal: Proposal | None
    run: str

    def lines(self) -> list[str]:
        """Describe the chosen entries and the reasons for them, for people."""
        if self.proposal is None:
            head = f"buckets: using the {len(self.entries)} entries stored in {self.run}/recipe.toml; {_AGAIN}"
        else:
            head = (
                f"buckets: {len(self.entries)} entries proposed, which the run will store; {self.proposal.headline()}"
            )
        return [head, *(f"  {_line(entry)}" for entry in self.entries)]

    def to_json(self) -> dict[str, Any]:
        """Return the entries as a JSON value."""
        source = self.proposal.to_json() if self.proposal else {"entries": [asdict(e) for e in self.entries]}
        return {"kept": self.proposal is None, "lines": self.lines(), **source}


def _line(entry: Suggestion) -> str:
    text = f"{entry.resolution} ×{entry.num_frames}, batch size {entry.batch_size}, keep_prob {entry.keep_prob:g}"
    return f"{text}: {entry.why}" if entry.why else text


def choose(recipe: Recipe, geometry: Geometry, clips: Callable[[], Clips]) -> tuple[Recipe, Chosen]:
    """Choose the entries of a recipe that leaves them open.

    Args:
        recipe: A recipe whose `buckets.entries` is "auto" or "refresh".
        geometry: Geometry of the model.
        clips: Returns the recipe's clips; called only if entries must be proposed.

    Returns:
        The recipe with the chosen entries, and how they were chosen.

    Raises:
        UserError: No entry suits any clip, `max_tokens` is too small, or the run's recipe cannot be read.
    """
    stored = _stored_entries(recipe)
    if stored is None:
        proposal = propose.propose(candidates := clips(), recipe.buckets, geometry)
        if not proposal.reached:
            raise _no_clips(candidates)
        chosen = Chosen(proposal.entries, proposal, recipe.output)
    else:
        chosen = Chosen(stored, None, recipe.output)
    update = {
        "bucket": [entry.config() for entry in chosen.entries],
        "buckets": recipe.buckets.model_copy(update={"entries": "keep"}),
    }
    return recipe.model_copy(update=update), chosen


def _stored_entries(recipe: Recipe) -> tuple[Suggestion, ...] | None:
    """Return the entries in the run's recipe; None without a run, or if new entries or limits are requested."""
    file = RunFolder(Path(recipe.output)).recipe_file
    if recipe.buckets.entries == "refresh" or not file.exists():
        return None
    stored = recipe_file.load(file)
    stored_limits = (stored.buckets.max_tokens, stored.buckets.max_batch_size)
    limits = (recipe.buckets.max_tokens, recipe.buckets.max_batch_size)
    if stored.buckets.entries != "keep" or stored_limits != limits:
        return None
    return tuple(
        Suggestion(config.resolution, frames, batch_size or stored.buckets.batch_size, keep_prob)
        for config in stored.bucket
        for frames, batch_size, keep_prob in zip(
            config.frames(), config.batch_sizes(), config.keep_probs(), strict=True
        )
    )


def _no_clips(clips: Clips) -> UserError:
    reasons, counts = np.unique(clips.excluded, return_counts=True)
    count_by_reason = {
        "smaller than any bucket" if reason == Reason.NONE else Reason(reason).label: count
        for reason, count in zip(reasons.tolist(), counts.tolist(), strict=True)
    }
    listed = ", ".join(f"{count} {reason}" for reason, count in count_by_reason.items())
    return UserError(
        f"there is no clip to propose bucket entries for ({listed or 'the datasets are empty'})",
        code="no-clip-to-propose-from",
        field="buckets",
        value="auto",
        remedy="repair the clips, or choose other datasets or a smaller autoencoder.stride",
    )
