"""The contract of metrics, which are of two kinds: values of single clips, and distances between two sets of clips.

A metric is one class without a base class. It is constructed with `Settings`; a metric that cannot be measured raises
`Skip` with the reason, in its constructor for all clips, or for one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from reelworks.inference.evaluate.clips import MeasuredClip
from reelworks.inference.evaluate.training_clips import TrainingClips

Array: TypeAlias = NDArray[np.float64]


class Skip(Exception):  # noqa: N818 - a reason rather than an error
    """The reason why a metric, or a metric of one clip, is not measured."""


@dataclass(frozen=True)
class Settings:
    """Weights, device and limits that metrics are constructed with.

    Attributes:
        weights: Local folder or file of each network's weights, by the network's name.
        device: Device to run networks on.
        min_samples: Fewest features of each set that a distance between sets is computed from.
        networks: Loaded networks by name, which several metrics share.
        training: Training clips to compare with; None if they are not known.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    min_samples: int = 100
    networks: dict[str, Any] = field(default_factory=dict, compare=False)
    training: TrainingClips | None = None


class MetricClass(Protocol):
    """Attributes of every metric's class.

    Attributes:
        name: Name on the command line, in recipes and in results.
        higher_is_better: Whether a higher value is the better one.
        requires_reference: Whether clips are compared with references.
    """

    name: str
    higher_is_better: bool
    requires_reference: bool


@runtime_checkable
class ClipMetric(MetricClass, Protocol):
    """A metric of single clips, whose result is their mean."""

    def value(self, clip: MeasuredClip) -> float:
        """Return the value of a clip; one with `requires_reference` gets only clips with a reference of their size."""
        ...


@runtime_checkable
class NearestMetric(ClipMetric, Protocol):
    """A metric of single clips that finds the training clip that each resembles most.

    Attributes:
        nearest: Name of that training clip, by the name of each clip that was measured.
    """

    nearest: Mapping[str, str]


@runtime_checkable
class SetMetric(MetricClass, Protocol):
    """A metric of a set of clips, compared with a set of references; the two need not have the same names."""

    def features(self, clip: MeasuredClip) -> Array:
        """Return features of a clip, `[N, D]`; N is the number of frames, or 1 for a feature of the whole clip."""
        ...

    def distance(self, generated: Array, reference: Array) -> float:
        """Return the distance between the features of both sets, `[N, D]` and `[M, D]`."""
        ...


Metric: TypeAlias = ClipMetric | SetMetric
