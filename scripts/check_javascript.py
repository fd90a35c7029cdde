"""Check the format and rules of JavaScript and style sheets, and sizes of JavaScript, or mend what biome can: [--write]"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIOME = Path(sys.executable).parent / "biome"
MAX_LINES, MAX_COLUMNS = 250, 120  # the formatter breaks no strings and comments


def oversizes() -> Iterator[str]:
    """Yield each file that is too long, and each line that is too wide."""
    for path in sorted((ROOT / "src").rglob("*.js")):
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_LINES:
            yield f"{path}: {len(lines)} lines, above {MAX_LINES}: split it where a second idea begins"
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, above {MAX_COLUMNS}"


def main() -> int:
    """Run biome with the options given, and return whether anything is wrong."""
    code = 0
    if BIOME.exists():
        code = subprocess.run([BIOME, "check", "--error-on-warnings", *sys.argv[1:], "."], cwd=ROOT).returncode
    else:
        print("biome has no wheel for this machine: format and rules of JavaScript are not checked here")
    found = list(oversizes())
    print(*found, sep="\n", end="\n" if found else "")
    return code or bool(found)


if __name__ == "__main__":
    sys.exit(main())
