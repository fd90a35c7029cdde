"""Several runs side by side, as JSON."""

from __future__ import annotations

from reelworks.annexes.page import runs
from reelworks.annexes.page.context import Context
from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.reports import compare, plots

_MOST = 8


def compare_runs(context: Context, keys: list[str]) -> Json:
    """Return results, differing recipe keys, curves, and previews by prompt of two to eight runs."""
    if not 2 <= len(set(keys)) <= _MOST:
        raise UserError(
            f"this compares two to {_MOST} runs",
            code="runs-to-compare",
            field="runs",
            value=len(set(keys)),
            remedy="choose them in the list of runs",
        )
    folders = [context.workspace.run(key) for key in keys]
    found = compare.compare(folders)
    named = list(zip(found.names, found.data, strict=True))
    return {
        "names": found.names,
        "results": results.as_json(found.result_rows),
        "recipe": results.as_json(found.recipe_rows),
        "figures": results.as_json(plots.overlaid(named)),
        "previews": _previews([runs.previews(context, key, run) for key, run in zip(keys, folders, strict=True)]),
    }


def _previews(of_runs: list[list[Json]]) -> list[Json]:
    """Return the previews of each prompt: of the last step that all runs have, or else of each one's last."""
    steps = [{shown["step"]: shown for shown in found} for found in of_runs]
    common = set(steps[0]).intersection(*steps[1:])
    chosen = [found.get(max(common, default=max(found, default=None))) for found in steps]
    by_prompt: dict[str, list[Json | None]] = {}
    for number, shown in enumerate(chosen):
        for file in shown["files"] if shown else ():
            row = by_prompt.setdefault(file["prompt"], [None] * len(chosen))
            row[number] = file | {"step": shown["step"]} if shown and file["url"] else None
    return [{"prompt": prompt, "files": files} for prompt, files in by_prompt.items()]
