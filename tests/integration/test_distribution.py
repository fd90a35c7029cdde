"""The wheel alone is the program: small, whole, and enough for the command line, the demo's parts and an example."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from reelworks.testing import sample_folder

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, out.iterdir())], check=True)
    (found,) = out.glob("*.whl")
    return found


def test_it_is_small_and_has_all_that_is_no_python(wheel: Path) -> None:
    assert wheel.stat().st_size < 2_500_000
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"reelworks/py.typed", "reelworks/demo/demo.toml", "reelworks/reports/template.html"} <= names
    assert not [name for name in names if "tests/" in name or name.startswith(("benchmarks", "drills"))]


def test_it_works_alone(wheel: Path, tmp_path: Path) -> None:
    """Beside the installed dependencies, but without the checkout."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
    own = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"],
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    ).stdout.strip()
    others = [
        path
        for path in Path(site.getsitepackages()[0]).iterdir()
        if not path.name.lower().startswith(
            ("reelworks", "_reelworks", "__editable__", "pip", "setuptools", "_distutils", "distutils", "__pycache__")
        )
    ]
    for path in others:
        if not (target := Path(own) / path.name).exists():
            target.symlink_to(path)
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    settings.pop("PYTHONPATH", None)

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [*map(str, command)],
            cwd=tmp_path,
            env=settings,
            capture_output=True,
            text=True,
            timeout=300,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert str(tmp_path) in run(python, "-c", "import reelworks; print(reelworks.__file__)")
    reelworks = tmp_path / "venv" / "bin" / "reelworks"
    assert "demo" in run(reelworks, "--help")
    footage = Path(shutil.copytree(sample_folder(), tmp_path / "footage"))
    assert "epoch 0: 1 steps of 12 clips" in run(python, ROOT / "examples" / "plan_only.py", footage)
    recipe = run(python, "-c", "from reelworks.demo import sample_recipe; print(sample_recipe.path('demo'))").strip()
    assert (tmp_path / recipe).is_relative_to(tmp_path / "venv")
    run(reelworks, "demo-data", "demo/footage")
    run(reelworks, "scan", "demo/footage", "-o", "demo/run/catalog")
    run(reelworks, "demo-autoencoder", "demo/run/catalog", "demo/autoencoder.safetensors")
    run(reelworks, "train", recipe, "--max-steps", "2")
    assert (tmp_path / "demo" / "run" / "checkpoints" / "step-000000002").is_dir()
