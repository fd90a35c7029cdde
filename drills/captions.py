"""Whether clips are trained with the captions that a person would read: lists, archives and text files as people have them.

`python -m drills.captions --json` tries each way to write captions, trains its clips for an epoch, and compares each caption
with what is written down by hand beside it. `wrong` counts the ways in which a clip got another text or none without a word.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks._results import AT_START, keep

from drills import _captions

RESULTS = Path(__file__).parent / "results" / "captions.json"
KINDS = tuple(sorted(path.stem for path in (Path(__file__).parent / "_captions").glob("[!_]*.py")))


def of_kind(kind: str) -> list[_captions.Case]:
    """Return the ways of a kind."""
    cases: list[_captions.Case] = importlib.import_module(f"drills._captions.{kind}").CASES.cases
    return cases


def tried(cases: list[_captions.Case]) -> dict[str, Any]:
    """Try ways to write captions; returns how many there were, how many are refused as they should, and which went wrong."""
    wrong: dict[str, str] = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                problem = _captions.problem(case, Path(folder).resolve())
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
        if problem:
            wrong[case.name] = problem
    refused = sum(case.expected is None and case.name not in wrong for case in cases)
    return {"tried": len(cases), "wrong": len(wrong), "refused_clearly": refused, "which": wrong}


def main() -> None:
    """Try the kinds that are named, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="all by default")
    parser.add_argument("--only", help="one way, by its name")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    told: dict[str, Any] = {}
    for kind in asked.kinds or KINDS:
        told[kind] = result = tried([case for case in of_kind(kind) if asked.only in (None, case.name)])
        if not asked.json:
            print(f"{kind}: {result['wrong']} of {result['tried']} wrong, {result['refused_clearly']} refused clearly")
            for name, problem in result["which"].items():
                print(f"  {name}: {problem}")
    total = {key: sum(result[key] for result in told.values()) for key in ("tried", "wrong", "refused_clearly")}
    result = {**total, **told, **AT_START}
    if asked.save:
        keep(RESULTS, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
