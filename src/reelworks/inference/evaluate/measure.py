"""Measure clips by several metrics at once; what cannot be measured has a reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reelworks.core import digests, trust
from reelworks.core.arrays import Frames
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.inference.evaluate import registry
from reelworks.inference.evaluate.clips import MeasuredClip, Unreadable
from reelworks.inference.evaluate.metric import Array, ClipMetric, Metric, NearestMetric, SetMetric, Settings, Skip
from reelworks.inference.evaluate.training_clips import TrainingClips
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.training.loop.config import SamplesConfig


@dataclass(frozen=True)
class PreviewMetrics:
    """Metrics of clips that are generated from prompts, in training and of its checkpoints; none may need references.

    Attributes:
        names: Their names as they were given.
        kinds: Classes of the metrics.
    """

    names: tuple[str, ...]
    kinds: tuple[type[Any], ...]
    settings: Settings

    @classmethod
    def named(
        cls,
        names: Sequence[str],
        weights: Mapping[str, str],
        device: torch.device,
        training: TrainingClips | None = None,
        field: str = "samples.metrics",
    ) -> PreviewMetrics:
        """Find metrics by their names; raises `UserError` for one that is unknown or needs references.

        Code that a recipe names runs only after the user has agreed; what is typed on the command line is not asked about.
        """
        if not field.startswith("--"):
            trust.require(names, field)
        kinds = registry.all_named(names, field)
        for kind in kinds:
            if kind.requires_reference:
                raise UserError(
                    "it compares clips with references, and previews have none",
                    code="metric-needs-references",
                    field=field,
                    value=kind.name,
                    remedy="leave it out; `reelworks eval --generated FOLDER --reference FOLDER` measures it",
                )
        return cls(tuple(names), tuple(kinds), Settings(weights, device, training=training))

    def digest(self, samples: SamplesConfig, options: GenerateOptions) -> str:
        """Return the digest of all that values depend on besides the checkpoint: only those with equal ones are compared."""
        code = [path for name in self.names if (path := trust.code_of(name)) is not None and path.is_file()]
        settings = {
            "samples": samples.model_dump(mode="json", exclude={"metrics", "metric_weights", "every_steps"}),
            "shape": str(options.shape),
            "sampler": [options.fps, options.num_inference_steps, options.guidance_scale, options.seed],
            "metrics": [*self.names, *(digests.digest_bytes(path.read_bytes()) for path in code)],
            "networks": {name: fingerprint(Path(path)) for name, path in self.settings.weights.items()},
            "training": None if self.settings.training is None else self.settings.training.digest(),
        }
        return digests.digest_json(settings)[:16]

    def values(self, generated: Sequence[Frames], prompts: Sequence[str]) -> list[MetricResult]:
        """Measure the previews of a step; a metric that fails costs its value and not the training."""
        found = []
        for kind in self.kinds:
            try:
                found += replace(self, kinds=(kind,)).measured(generated, prompts)
            except UserError as error:
                logger.warning("metrics of the previews: %s", error.problem)
        return found

    def measured(self, generated: Sequence[Frames], prompts: Sequence[str]) -> list[MetricResult]:
        """Measure generated clips, named by their numbers.

        Raises:
            UserError: A metric failed.
        """
        shown = [MeasuredClip(f"{i:02d}", *pair) for i, pair in enumerate(zip(generated, prompts, strict=True))]
        return measure(self.kinds, shown, None, self.settings)[0]


@dataclass(frozen=True)
class MetricResult:
    """Result of one metric.

    Attributes:
        value: The result; None if it was skipped.
        clips: Number of clips that it was measured on.
        skipped: Reason why it was not measured; also of clips that were left out of a value, with their number.
        by_clip: Value of each clip by name, for metrics of single clips.
        nearest: Training clip that each clip resembles most, for metrics that find it.
    """

    name: str
    higher_is_better: bool
    value: float | None
    clips: int = 0
    skipped: str | None = None
    by_clip: dict[str, float] = field(default_factory=dict)
    nearest: dict[str, str] = field(default_factory=dict)


class _MetricRun:
    """One metric while clips pass by."""

    def __init__(self, kind: type[Any], settings: Settings, *, has_references: bool) -> None:
        self.kind, self._settings = kind, settings
        self.values: dict[str, float] = {}
        self._generated: list[Array] = []
        self._references: list[Array] = []
        self._reasons: Counter[str] = Counter()  # of clips that were left out
        self._clips = 0
        self._reason: str | None = None  # of the whole metric
        self._metric: Metric | None = None
        if kind.requires_reference and not has_references:
            self._reason = "it needs references; name their folder with --reference"
            return
        try:
            self._metric = self._own(kind, settings)
        except Skip as reason:
            self._reason = str(reason)

    @property
    def needs_references(self) -> bool:
        return isinstance(self._metric, SetMetric)

    def _own(self, function: Callable[..., Any], *given: Any) -> Any:
        """Return what a metric's own code returns for something."""
        try:
            return function(*given)
        except (Skip, UserError):
            raise
        except ModuleNotFoundError as error:
            raise Skip(f"the package {error.name} is not installed") from error
        except Exception as error:  # metrics of users may raise anything
            raise UserError(
                f"the metric {self.kind.name} failed ({type(error).__name__}: {error})",
                code="metric-failed",
                field="--metric",
                value=self.kind.name,
                remedy="correct it, or leave it out",
            ) from error

    def add(self, clip: MeasuredClip) -> None:
        if self._metric is None:
            return
        try:
            if isinstance(self._metric, SetMetric):
                self._generated.append(self._own(self._metric.features, clip))
            elif self.kind.requires_reference and clip.reference is None:
                raise Skip("there is no reference of the same name")
            else:
                self.values[clip.name] = _finite(self._own(self._metric.value, clip))
            self._clips += 1
        except Skip as reason:
            self._reasons[str(reason)] += 1

    def add_reference(self, clip: MeasuredClip) -> None:
        if isinstance(self._metric, SetMetric):
            try:
                self._references.append(self._own(self._metric.features, clip))
            except Skip as reason:
                self._reasons[f"a reference: {reason}"] += 1

    def result(self) -> MetricResult:
        value, reason = None, self._reason
        if reason is None:
            value, reason = self._value()
        left_out = [f"{count} × {text}" for text, count in self._reasons.most_common(3)]
        skipped = "; ".join([*([reason] if reason else []), *left_out]) or None
        name, higher = self.kind.name, self.kind.higher_is_better
        nearest = dict(self._metric.nearest) if isinstance(self._metric, NearestMetric) else {}
        return MetricResult(name, higher, value, 0 if value is None else self._clips, skipped, self.values, nearest)

    def _value(self) -> tuple[float | None, str | None]:
        """Return the value over all clips, or None and the reason."""
        if isinstance(self._metric, ClipMetric):
            values = list(self.values.values())
            return (float(np.mean(values)), None) if values else (None, "no clip could be measured")
        assert isinstance(self._metric, SetMetric)
        counts = [sum(map(len, parts)) for parts in (self._generated, self._references)]
        least = max(self._settings.min_samples, 2)
        if min(counts) < least:
            return None, f"too few samples, {counts[0]} and {counts[1]} of references (--min-samples {least})"
        try:
            both = np.concatenate(self._generated), np.concatenate(self._references)
            return _finite(self._own(self._metric.distance, *both)), None
        except Skip as skip:
            return None, str(skip)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise Skip(f"its value is {value}")
    return float(value)


def measure(
    kinds: Sequence[type[Any]],
    generated: Iterable[MeasuredClip | Unreadable],
    references: Iterable[MeasuredClip | Unreadable] | None,
    settings: Settings,
) -> tuple[list[MetricResult], list[Unreadable]]:
    """Measure clips by metrics, each clip decoded once; also return the files that could not be read.

    `references` are decoded for metrics that compare sets only; those of single clips belong to the clips.
    """
    runs = [_MetricRun(kind, settings, has_references=references is not None) for kind in kinds]
    unreadable = []
    for clip in generated:
        if isinstance(clip, Unreadable):
            unreadable.append(clip)
            continue
        for run in runs:
            run.add(clip)
    for reference in (references or ()) if any(run.needs_references for run in runs) else ():
        if isinstance(reference, Unreadable):
            unreadable.append(reference)
            continue
        for run in runs:
            run.add_reference(reference)
    return [run.result() for run in runs], unreadable


def fingerprint(path: Path) -> list[Any]:
    """Return names, sizes and times of a network's files, so that other weights in its place are noticed."""
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file.relative_to(path.parent)), file.stat()) for file in found if file.is_file()]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
