"""Whether scripts are read as the shell would run them: `python -m drills.import_scripts [--only NAME] [--json] [--save]`.

Each script is run by bash in an empty folder, where the programs that it starts only note their arguments, and is read by
`import`, which runs nothing. `wrong` counts those of which a command that trains has other words without a line that says so, or
which are refused though they can be followed; `refused_clearly` those that nobody can know without running them, and that say so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._results import AT_START, keep

from drills._imports.scripts import CASES, ScriptCase
from reelworks.annexes.imports.files import ConfigFile
from reelworks.annexes.imports.script import Command

RESULTS = Path(__file__).parent / "results" / "import_scripts.json"
_PROGRAMS = ("accelerate", "python", "python3", "deepspeed", "torchrun")
_NOTES = """#!{python} -S
import json, os, sys
with open(os.environ["NOTES"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
_TRAINS = re.compile(r"train\w*\.py$")


def run_by_bash(case: ScriptCase, folder: Path) -> list[list[str]]:
    """Return the commands that train as bash starts them; the first word is the program."""
    programs, notes = folder / "programs", folder / "notes"
    programs.mkdir()
    for name in _PROGRAMS:
        (programs / name).write_text(_NOTES.format(python=os.path.realpath(sys.executable)), encoding="utf-8")
        (programs / name).chmod(0o755)
    place = folder / "there"
    place.mkdir()
    (place / f"run{case.suffix}").write_text(case.text, encoding="utf-8")
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "NOTES": str(notes)}
    subprocess.run(
        ["bash", f"run{case.suffix}"], cwd=place, env=environment, capture_output=True, timeout=30, check=False
    )
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return [words for words in map(json.loads, lines) if any(_TRAINS.search(word) for word in words)]


def outcome(case: ScriptCase, folder: Path) -> tuple[str, str]:
    """Return "right", "refused" or "wrong", and what is wrong."""
    wanted = [[*case.words]] if case.words is not None else run_by_bash(case, folder)
    if not wanted:
        return "wrong", "bash starts no training"
    file = ConfigFile(Path(f"run{case.suffix}"), case.text)
    found = [command for command in file.commands if any(_TRAINS.search(word) for word in command.words)]
    said = [line for command in found for line in (*command.unread, *command.notes)]
    if not case.is_read:
        return ("refused", "") if said else ("wrong", f"nothing is said: {[each.words for each in found]}")
    if said:
        return "wrong", f"it can be followed, and {said[0]}"
    if (words := [_from_program(command) for command in found]) != wanted:
        return "wrong", f"{words} in place of {wanted}"
    for name, text in file.script.files.items():
        if (folder / "there" / name).read_text(encoding="utf-8") != text:
            return "wrong", f"{name} has other text"
    return "right", ""


def _from_program(command: Command) -> list[str]:
    """Return the words from the program on, without what only starts it."""
    start = next(i for i, word in enumerate(command.words) if word in _PROGRAMS)
    return command.words[start:]


def tried(cases: tuple[ScriptCase, ...]) -> dict[str, Any]:
    """Try scripts, and count."""
    counts, wrong = {"right": 0, "refused": 0, "wrong": 0}, {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            what, why = outcome(case, Path(folder))
        counts[what] += 1
        if why:
            wrong[case.name] = why
    return {"tried": len(cases), "wrong": counts["wrong"], "refused_clearly": counts["refused"], "which": wrong}


def main() -> None:
    """Try all, or one, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one script, by its name")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    asked = parser.parse_args()
    result = tried(tuple(case for case in CASES if asked.only in (None, case.name)))
    if not asked.json:
        for name, why in result["which"].items():
            print(f"  {name}: {why}")
    if asked.save:
        keep(RESULTS, result | AT_START)
    print(json.dumps(result | AT_START))


if __name__ == "__main__":
    main()
