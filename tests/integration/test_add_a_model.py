"""The guide that adds a model is true: its files are those of the example, and its commands work as they are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "add-a-model.md"
FOLDER = "src/reelworks/models/families/auraflow"


def files() -> dict[str, str]:
    """Each code block of the guide, by the path that the text before it names."""
    parts = re.split(r"```(?:python|toml)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {
        re.findall(r"`(src/[^`]+\.(?:py|toml))`", before)[-1]: code
        for before, code in zip(parts[0::2], parts[1::2], strict=False)
    }


def test_the_guides_files_are_the_examples() -> None:
    """A contributor copies them from either place."""
    example = ROOT / "examples" / "add_a_model" / "auraflow"
    written = {f"{FOLDER}/{file.name}": file.read_text(encoding="utf-8") for file in example.glob("*.*")}
    assert files() == written
    assert len(written) == 4


@pytest.mark.slow
def test_a_family_outside_the_package_is_trained_after_one_call(tmp_path: Path) -> None:
    """The example checks its network as every family is checked, trains it, and has its name in errors."""
    from reelworks.testing import sample_folder

    command = [sys.executable, ROOT / "examples" / "add_a_model" / "train.py", sample_folder(), "--steps", "2"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=240, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "auraflow-tiny keeps the contract of denoisers" in done.stdout
    assert "step 2/2" in done.stdout
    assert len(list((tmp_path / "runs" / "add-a-model" / "checkpoints").glob("*"))) >= 1


@pytest.mark.slow
def test_the_guide_is_followed_word_by_word(tmp_path: Path) -> None:
    """In a copy of the project: its files, its commands, and the new rows in the generated pages."""
    for name in ("src", "tests", "scripts", "docs", "recipes", "pyproject.toml", "README.md", "conftest.py"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "golden"))
        else:
            shutil.copy(source, tmp_path / name)
    for path, code in files().items():
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(code, encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    settings = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "src"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    printed = ""
    for command in block.splitlines():
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=settings,
            capture_output=True,
            text=True,
            timeout=400,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        printed += done.stdout
    passed = re.search(r"(\d+) passed", printed)
    assert passed is not None
    assert int(passed[1]) >= 9
    pages = tmp_path / "docs" / "reference"
    assert "`auraflow-0.3`, `auraflow-tiny` | 6.8" in (pages / "models.md").read_text(encoding="utf-8")
    assert "`auraflow`" in (pages / "recipe.md").read_text(encoding="utf-8")
