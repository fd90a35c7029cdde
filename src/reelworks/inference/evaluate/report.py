"""Results of metrics, those of VBench among them, as a value and as a file, and as metrics of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from reelworks.core import digests, machine, torch_state, user_files
from reelworks.core.errors import UserError, first_few
from reelworks.core.log import logger
from reelworks.data.checkpoint import locate
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.inference.evaluate import clips, registry
from reelworks.inference.evaluate.clips import MeasuredClip, Unreadable
from reelworks.inference.evaluate.measure import MetricResult, fingerprint, measure
from reelworks.inference.evaluate.metric import Settings
from reelworks.inference.evaluate.request import EvalRequest
from reelworks.inference.evaluate.training_clips import TrainingClips
from reelworks.inference.generate import vbench_files

WEIGHTS = ("clip", "dinov2", "inception", "videomae")


@dataclass(frozen=True)
class Report:
    """Results of metrics on a folder of clips, and those that VBench measured.

    Attributes:
        settings: Networks and limits of the metrics.
    """

    generated: Path | None
    reference: Path | None
    metrics: list[MetricResult]
    unreadable: list[Unreadable] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    JSON_KEYS: ClassVar = ("generated", "reference", "metrics", "unreadable")

    def file(self) -> None:
        """Return no file: the result belongs to no run."""

    @property
    def measured_on(self) -> str:
        """Digest of all that values depend on besides the clips' content: what could be read, references, and settings."""
        lost = {each.name for each in self.unreadable}
        names = self.generated and sorted(clips.files_of(self.generated, "--generated").keys() - lost)
        reference = {} if self.reference is None else clips.files_of(self.reference, "--reference")
        content = {name: digests.of_file(path) for name, path in reference.items()}
        networks = {name: fingerprint(Path(path)) for name, path in self.settings.weights.items()}
        return digests.digest_json([names, content, networks, self.settings.min_samples])[:16]

    @property
    def values(self) -> dict[str, float]:
        """Values of the metrics that were measured, by name."""
        return {measured.name: measured.value for measured in self.metrics if measured.value is not None}


@torch_state.own()
def of_folders(request: EvalRequest, on_clip: Callable[[int, int], None] = lambda done, total: None) -> Report:
    """Measure the clips of a folder by metrics, all registered ones by default, and add the results of VBench.

    Raises:
        UserError: A folder holds no media, a metric or a name of weights is unknown, or the results cannot be read.
    """
    generated, reference = request.generated, request.reference
    foreign = [] if request.vbench is None else vbench_results(request.vbench)
    if generated is None:
        return Report(None, None, foreign)
    kinds = registry.all_named(request.metrics or registry.names(), "--metric")
    device = machine.default_device()
    files = clips.files_of(generated, "--generated")
    references = None if reference is None else clips.files_of(reference, "--reference")
    training = None if references is None else TrainingClips.of_files(references)
    settings = Settings(weights_of(request.weights), device, request.min_samples, training=training)
    if references is not None and not files.keys() & references.keys():
        names_there = first_few(sorted(references))
        logger.info("no reference has the name of a clip (%s, ...), so sets can be compared, but no pairs", names_there)
    total = len(files) + len(references or ())

    def counted(read: Iterable[MeasuredClip | Unreadable], first: int) -> Iterator[MeasuredClip | Unreadable]:
        for done, clip in enumerate(read, first):
            on_clip(done, total)
            yield clip

    of_references = None if references is None else counted(clips.read(references), len(files))
    captions = {name: vbench_files.prompt_of(name) for name in files} if request.prompts_in_names else None
    measured, unreadable = measure(kinds, counted(clips.read(files, references, captions), 0), of_references, settings)
    return Report(generated, reference, [*measured, *foreign], unreadable, settings)


def weights_of(given: Sequence[str]) -> dict[str, str]:
    """Return paths of weights by name from texts such as `clip=models/clip`."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if name not in WEIGHTS or not equals or not path:
            raise UserError(
                "not a name and a path",
                code="weights-not-understood",
                field="--weights",
                value=text,
                remedy=f"write NAME=PATH, with one of the names {', '.join(WEIGHTS)}",
            )
        found[name] = path
    return found


def record(target: Path, values: dict[str, float], measured_on: str) -> str:
    """Add values to the metrics of a checkpoint as `eval/NAME`, where keep_best finds them; returns a sentence.

    Only values of equal `measured_on`, a digest of all that they depend on besides the checkpoint, are compared.
    """
    run, step = locate.locate(target)
    metrics = {name if name.startswith("vbench/") else f"eval/{name}": value for name, value in values.items()}
    CheckpointFolder(run.checkpoints_folder).record_metrics(step, metrics, dict.fromkeys(metrics, measured_on))
    return f"recorded for step {step}: {', '.join(metrics)}"


def vbench_results(path: Path) -> list[MetricResult]:
    """Read a file `*_eval_results.json` of VBench; in all its dimensions higher is better.

    Raises:
        UserError: The file cannot be read, or is not such a file.
    """
    try:
        return [_vbench_dimension(name, *result[:2]) for name, result in user_files.read_json(path).items()]
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise UserError(
            f"this is no result of VBench ({user_files.why(error)})",
            code="vbench-unreadable",
            field="--vbench",
            value=str(path),
            remedy="name the file NAME_eval_results.json in its output folder",
        ) from error


def _vbench_dimension(name: str, mean: Any, by_clip: Any = ()) -> MetricResult:
    # Some dimensions give objects per clip, and some pairs or other values that are no mean of the clip.
    entries = [each for each in by_clip if isinstance(each, dict) and isinstance(each.get("video_path"), str)]
    values = {Path(each["video_path"]).stem: each.get("video_results") for each in entries}
    numbers = {clip: float(v) for clip, v in values.items() if isinstance(v, int | float)}
    return MetricResult(f"vbench/{name}", True, float(mean), len(entries), by_clip=numbers)
