"""Clips for VBench, which runs in an environment of its own, and finds those of a prompt as `PROMPT-0.mp4` to `PROMPT-4.mp4`."""

from __future__ import annotations

import re
from pathlib import Path

from reelworks.core import system, user_files
from reelworks.core.errors import UserError, first_few

SAMPLES = 5  # clips of a prompt that VBench looks for
_SUFFIX = ".mp4"


def prompts(path: Path, option: str) -> list[str]:
    """Read prompts: the lines of a text file, or `prompt_en` of each entry of VBench's JSON list, each once.

    Raises:
        UserError: The file cannot be read, or has no prompt.
    """
    try:
        text = user_files.read_text(path, user_files.TABLE, encoding="utf-8-sig")
        is_json = path.suffix.lower() == ".json"
        found = [entry["prompt_en"] for entry in user_files.parse_json(text)] if is_json else text.splitlines()
        unique = list(dict.fromkeys(prompt.strip() for prompt in found if prompt.strip()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"the prompts cannot be read ({user_files.why(error)})",
            code="prompts-unreadable",
            field=option,
            value=str(path),
            remedy="name a text file with a prompt in each line, or VBench's VBench_full_info.json",
        ) from error
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
    longest = system.MOST_NAME_BYTES - len(f"-{samples - 1}{_SUFFIX}")
    wrong = [p for p in prompts if p.startswith(".") or not system.is_file_name(f"{p}-0{_SUFFIX}")]
    if wrong:
        raise UserError(
            f"VBench finds clips by their prompts, and these cannot be names of files: {first_few(wrong)}",
            code="prompt-is-no-file-name",
            field="--prompt-file",
            value=len(wrong),
            remedy=f"shorten them to {longest} bytes, without slashes, leading dots and other signs that no name here may have",
        )
    return {folder / f"{prompt}-{index}{_SUFFIX}": (prompt, index) for prompt in prompts for index in range(samples)}


def prompt_of(name: str) -> str:
    """Return the prompt in the name of a clip without its suffix, as VBench reads it."""
    return re.sub(r"-\d+$", "", name.rpartition("/")[2])
