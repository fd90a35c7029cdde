"""Check the format and the rules of all JavaScript with biome, or mend what it can: check_javascript.py [--write]"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIOME = Path(sys.executable).parent / "biome"


def main() -> int:
    """Run biome with the options given, and return its exit code."""
    if not BIOME.exists():
        print("biome has no wheel for this machine: JavaScript is not checked here")
        return 0
    return subprocess.run([BIOME, "check", "--error-on-warnings", *sys.argv[1:], "."], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
