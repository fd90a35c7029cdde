"""Results of VBench, which runs in an environment of its own: a JSON object with the mean and the values of each dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reelworks.core import user_files
from reelworks.core.errors import UserError
from reelworks.inference.evaluate.measure import MetricResult


def results(path: Path) -> list[MetricResult]:
    """Read a file `*_eval_results.json` of VBench; in all its dimensions higher is better.

    Raises:
        UserError: The file cannot be read, or is not such a file.
    """
    try:
        return [_dimension(name, *result[:2]) for name, result in user_files.read_json(path).items()]
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise UserError(
            f"this is no result of VBench ({user_files.why(error)})",
            code="vbench-unreadable",
            field="--vbench",
            value=str(path),
            remedy="name the file NAME_eval_results.json in its output folder",
        ) from error


def _dimension(name: str, mean: Any, by_clip: Any = ()) -> MetricResult:
    # Some dimensions give objects per clip, and some pairs or other values that are no mean of the clip.
    entries = [each for each in by_clip if isinstance(each, dict) and isinstance(each.get("video_path"), str)]
    values = {Path(each["video_path"]).stem: each.get("video_results") for each in entries}
    numbers = {clip: float(v) for clip, v in values.items() if isinstance(v, int | float)}
    return MetricResult(f"vbench/{name}", True, float(mean), len(entries), by_clip=numbers)
