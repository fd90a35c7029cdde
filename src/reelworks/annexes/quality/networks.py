"""Apply measures that run networks, in the main process, to the frames that the pool decoded, several clips at a time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reelworks.annexes.quality import registry
from reelworks.annexes.quality.measure import ClipPictures, NetworkMeasure
from reelworks.core import torch_state
from reelworks.core.errors import UserError

_CLIPS_AT_ONCE = 16


class WaitingClip(NamedTuple):
    """A clip that networks are to measure: its place among those to measure, its pictures, and the entries of measures."""

    place: int
    pictures: ClipPictures
    entries: tuple[str, ...]


class NetworkValues(NamedTuple):
    """Values of a clip by label, by its place among those to measure, and the problems of measures that have none."""

    place: int
    values: dict[str, float | bytes]
    problems: list[str]


@dataclass
class Networks:
    """The networks of measures, by their entries; each is loaded when the first clip comes."""

    kinds: Mapping[str, type[Any]]
    _loaded: dict[str, NetworkMeasure] = field(default_factory=dict)
    _waiting: list[WaitingClip] = field(default_factory=list)

    def load(self, entry: str) -> NetworkMeasure:
        """Return the measure of an entry.

        Raises:
            UserError: Its weights cannot be read.
        """
        if entry not in self._loaded:
            kind = self.kinds[entry]
            try:
                self._loaded[entry] = kind(kind.weights)
            except Exception as error:  # damaged files raise errors of any kind
                raise registry.not_loaded(kind, kind.weights, error, "measure") from error
        return self._loaded[entry]

    def add(self, clip: WaitingClip) -> list[NetworkValues]:
        """Take a clip, and return the values of several as soon as there are enough."""
        self._waiting.append(clip)
        return self.rest() if len(self._waiting) >= _CLIPS_AT_ONCE else []

    def rest(self) -> list[NetworkValues]:
        """Return the values of all clips that wait."""
        clips, self._waiting = self._waiting, []
        found = [NetworkValues(clip.place, {}, []) for clip in clips]
        for entry, kind in self.kinds.items():
            mine = [one for one, clip in zip(found, clips, strict=True) if entry in clip.entries]
            if not mine:
                continue
            try:
                with torch_state.own() if "torch" in sys.modules else nullcontext():
                    values = self.load(entry).of_clips([clip.pictures for clip in clips if entry in clip.entries])
                for one, of_clip in zip(mine, values, strict=True):
                    one.values.update(registry.by_label(kind, of_clip))
            except UserError:
                raise
            except Exception as error:  # a network may raise anything
                for one in mine:
                    one.problems.append(f"{kind.name}: {type(error).__name__}: {error}")
        return found
