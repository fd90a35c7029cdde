"""Whether films as people have them are trained as a player shows them: `python -m drills.footage [--json] [--save]`.

The ffmpeg program makes small films of numbered frames of every sensible pair of container, codec and structure. What it shows
of each is what is right: order, count, times, size and colours of frames. A scan of Reelworks and the frames that it decodes are
compared with that; where only the way a film was made tells what is right, such as for crops in containers, that is compared.
With `--trained` a tiny model trains on some of the oddest too, and the frames of its batches are read by their numbers.
`right`, `wrong` and `refused_clearly` (no player shows the film whole, or the reason is one that was decided) make `tried`;
`not_made` are files that this program cannot make. Where it is missing, the benchmark is skipped with the reason.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import multiprocessing
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._results import AT_START, keep

import reelworks as rw
from drills._footage import program, trained
from drills._footage.all_cases import all_cases
from drills._footage.case import Case, NotMadeError, Shop
from drills._footage.judge import NOT_MADE, REFUSED, RIGHT, WRONG, Verdict, judge

RESULTS = Path(__file__).parent / "results" / "footage.json"
_TOGETHER = 16  # cases that are scanned together


def make(case: Case, shop: Shop, folder: Path) -> Verdict | None:
    """Make a case's file in a folder; return why it is not made, or None."""
    path = folder / case.file
    try:
        case.make(shop, path)
        path.with_suffix(".txt").write_text(case.name, encoding="utf-8")
    except (program.ProgramError, NotMadeError, OSError) as error:
        path.unlink(missing_ok=True)
        return Verdict(NOT_MADE, str(error))
    return None


def try_cases(names: Sequence[str], keep_in: Path | None) -> dict[str, Verdict]:
    """Make some cases, scan them as one folder, and judge each."""
    chosen = [case for case in all_cases() if case.name in names]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "films"
        folder.mkdir()
        shop = Shop(Path(temporary) / "shop")
        verdicts = {case.name: verdict for case in chosen if (verdict := make(case, shop, folder)) is not None}
        catalog = Path(temporary) / "catalog"
        table = rw.Catalog.scan(folder, to=catalog, workers=1).table if any(folder.iterdir()) else None
        rows = {row["path"]: row for row in table.to_pylist()} if table is not None else {}
        for case in chosen:
            if case.name not in verdicts:
                verdicts[case.name] = _judge(case, folder / case.file, rows.get(case.file))
        if keep_in is not None:
            shutil.copytree(folder, keep_in, dirs_exist_ok=True)
    return verdicts


def _judge(case: Case, path: Path, row: dict[str, Any] | None) -> Verdict:
    try:
        return judge(case, path, row)
    except Exception as error:  # what goes wrong here must not end the others
        return Verdict(WRONG, f"{type(error).__name__}: {error}")


def measure(cases: Sequence[Case], keep_in: Path | None, *, speaks: bool) -> dict[str, Verdict]:
    """Try all cases in two processes."""
    groups = [[case.name for case in cases[i : i + _TOGETHER]] for i in range(0, len(cases), _TOGETHER)]
    found: dict[str, Verdict] = {}
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        for verdicts in pool.map(try_cases, groups, [keep_in] * len(groups)):
            found.update(verdicts)
            for name, verdict in verdicts.items():
                if speaks and verdict.outcome != RIGHT:
                    print(f"{verdict.outcome}: {name}: {verdict.why}", flush=True)
    return found


def figures(verdicts: dict[str, Verdict]) -> dict[str, Any]:
    """Return how many came to what, and what is wrong, refused or not made."""
    counted = Counter(verdict.outcome for verdict in verdicts.values())
    told = {
        outcome: {name: each.why for name, each in verdicts.items() if each.outcome == outcome}
        for outcome in (WRONG, REFUSED, NOT_MADE)
    }
    tried = counted[RIGHT] + counted[WRONG] + counted[REFUSED]
    oracles = Counter(each.oracle for each in verdicts.values() if each.outcome != NOT_MADE)
    counts = {key: counted[key] for key in (RIGHT, WRONG, REFUSED, NOT_MADE)}
    return {"tried": tried, **counts, "oracles": dict(oracles), **{f"{key}_files": told[key] for key in told}}


def train() -> dict[str, Any]:
    """Train on some films as they are, and on some at a rate of frames that is asked for; return what is wrong."""
    found = {}
    for key, names, fps in (("", trained.CASES, None), (" at 16 fps", trained.AT_A_RATE, 16.0)):
        with tempfile.TemporaryDirectory() as folder:
            found.update({name + key: why for name, why in trained.try_run(names, Path(folder), fps=fps).items()})
    wrong = {name: why for name, why in found.items() if why}
    return {"tried": len(found), "wrong": len(wrong), "wrong_films": wrong}


def main() -> None:
    """Try, tell, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="cases whose names match, as in 'h264_*avi'")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="leave the films in this folder")
    parser.add_argument("--trained", action="store_true", help="train on some of them too")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line, and no lines before"
    )
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    if program.find() is None:
        print(json.dumps({"skipped": program.HOW_TO_GET}) if options.json else f"skipped: {program.HOW_TO_GET}")
        return
    began = time.perf_counter()
    cases = [case for case in all_cases() if fnmatch.fnmatch(case.name, options.only)]
    told = figures(measure(cases, options.keep, speaks=not options.json))
    told |= {"ffmpeg": ".".join(map(str, program.version())), "seconds": round(time.perf_counter() - began, 1)}
    if options.trained:
        told["trained"] = train()
    if options.save:
        keep(RESULTS, told)
    if options.json:
        print(json.dumps(told | AT_START))
    else:
        print(", ".join(f"{key} {told[key]}" for key in ("tried", RIGHT, WRONG, REFUSED, NOT_MADE)))
        if options.trained:
            print(f"trained: {json.dumps(told['trained'])}")


if __name__ == "__main__":
    main()
