"""Write uv.lock: the versions of constraints.txt, and of what else the extras need, for each system that pyproject.toml names.

    python scripts/lock.py

uv reads constraints from pyproject.toml alone. A copy that holds them is resolved first; the result is then resolved again without
them, by which no version changes, so that `uv sync --locked` finds nothing to do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "README.md",
    "recipes",
    "src/reelworks/core/version.py",
)  # what the build reads to tell the package's metadata


def constraints() -> list[str]:
    """Return the lines of constraints.txt that name a version."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "==" in line and not line.startswith("#")]


def main() -> None:
    """Resolve twice, and copy the lock back."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    held = "".join(f'  "{line}",\n' for line in constraints())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for needed in NEEDED:
            (folder / needed).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / needed).is_dir() else shutil.copy
            copy(ROOT / needed, folder / needed)
        constrained = project.replace("[tool.uv]\n", f"[tool.uv]\nconstraint-dependencies = [\n{held}]\n")
        for text in (constrained, project):
            (folder / "pyproject.toml").write_text(text, encoding="utf-8")
            subprocess.run([sys.executable, "-m", "uv", "lock"], cwd=folder, check=True)
        shutil.copy(folder / "uv.lock", ROOT / "uv.lock")


if __name__ == "__main__":
    main()
