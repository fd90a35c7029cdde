"""Exchange with VBench, which runs in an environment of its own: clips for it, and its results.

VBench finds the clips of a prompt as `PROMPT-0.mp4` to `PROMPT-4.mp4` in one folder, and writes a JSON object that has for
each dimension the mean and the value of each clip.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from reelworks.core import user_files
from reelworks.core.errors import UserError, first_few
from reelworks.inference.evaluate.measure import MetricResult

SAMPLES = 5  # clips of a prompt that VBench looks for
_MOST_BYTES = 255  # of a file name
_SUFFIX = ".mp4"


def prompts(path: Path, option: str) -> list[str]:
    """Read prompts: the lines of a text file, or `prompt_en` of each entry of VBench's JSON list, each once.

    Raises:
        UserError: The file cannot be read, or has no prompt.
    """
    try:
        text = user_files.read_text(path, user_files.TABLE)
        is_json = path.suffix == ".json"
        found = [entry["prompt_en"] for entry in user_files.parse_json(text)] if is_json else text.splitlines()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the prompts cannot be read ({type(error).__name__}: {error})",
            code="prompts-unreadable",
            field=option,
            value=str(path),
            remedy="name a text file with a prompt in each line, or VBench's VBench_full_info.json",
        ) from error
    unique = list(dict.fromkeys(prompt.strip() for prompt in found if prompt.strip()))
    if not unique:
        raise UserError(
            "there is no prompt in it",
            code="prompts-unreadable",
            field=option,
            value=str(path),
            remedy="write a prompt into each line",
        )
    return unique


def files(folder: Path, prompts: list[str], samples: int = SAMPLES) -> dict[Path, tuple[str, int]]:
    """Return the file of each clip in VBench's layout, with its prompt and its index.

    Raises:
        UserError: A prompt cannot be the name of a file, by which VBench finds it.
    """
    longest = _MOST_BYTES - len(f"-{samples - 1}{_SUFFIX}")
    wrong = [p for p in prompts if "/" in p or "\0" in p or p.startswith(".") or len(p.encode()) > longest]
    if wrong:
        raise UserError(
            f"VBench finds clips by their prompts, and these cannot be names of files: {first_few(wrong)}",
            code="prompt-is-no-file-name",
            field="--prompt-file",
            value=len(wrong),
            remedy=f"shorten them to {longest} bytes, without slashes and leading dots",
        )
    return {folder / f"{prompt}-{index}{_SUFFIX}": (prompt, index) for prompt in prompts for index in range(samples)}


def prompt_of(name: str) -> str:
    """Return the prompt in the name of a clip without its suffix, as VBench reads it."""
    return re.sub(r"-\d+$", "", name.rpartition("/")[2])


def results(path: Path) -> list[MetricResult]:
    """Read a file `*_eval_results.json` of VBench; in all its dimensions higher is better.

    Raises:
        UserError: The file cannot be read, or is not such a file.
    """
    try:
        value = user_files.read_json(path)
        return [_dimension(name, *result[:2]) for name, result in value.items()]
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise UserError(
            f"this is no result of VBench ({type(error).__name__}: {error})",
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
