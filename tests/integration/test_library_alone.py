"""The library works with the few packages that it names: whoever has a loop of their own installs nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from reelworks.testing import sample_folder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "use-the-library.md"
# What its line installs, without torch.
(LINE,) = re.findall(r"^pip install (numpy .*) torch$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
LIBRARY = [Requirement(one) for one in shlex.split(LINE)]
NAMES = [one.name for one in LIBRARY]


def with_requirements(*names: str) -> dict[str, importlib.metadata.Distribution]:
    """Distributions and all that these need, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        needed = map(Requirement, found[name].requires or ())
        waiting += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def environment(folder: Path, *names: str) -> Path:
    """A virtual environment that has some packages alone, and the program from the checkout."""
    venv.create(folder)
    (packages,) = (folder / "lib").glob("*/site-packages")
    for distribution in with_requirements(*names).values():
        files = [file for file in distribution.files or () if file.parts[0] != ".."]
        for top in {file.parts[0] for file in files}:
            target = packages / top
            if not target.is_symlink():
                target.symlink_to(Path(str(distribution.locate_file(top))))
    (packages / "program.pth").write_text(f"{ROOT / 'src'}\n", encoding="utf-8")
    return folder / "bin" / "python"


IMPORTED = """
import importlib, pkgutil, sys
names = [name for wing in ("core", "data") for name in (
    each.name for each in pkgutil.walk_packages(
        importlib.import_module(f"reelworks.{wing}").__path__, f"reelworks.{wing}.",
    )
)]
for name in names:
    importlib.import_module(name)
print(len(names), *sorted({name.partition(".")[0] for name in sys.modules} & {"rich", "typer", "diffusers", "tomlkit"}))
"""


def run(python: Path, *arguments: str | Path, at: Path, **settings: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | settings
    done = subprocess.run(
        [python, *arguments], cwd=at, env=env, capture_output=True, text=True, timeout=300, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def test_the_line_of_the_page_has_the_upper_bounds_of_the_package() -> None:
    """pip, which is told to leave the package's own out, takes the newest version that the line allows."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    bounded = {one.name: one.specifier for one in map(Requirement, needed) if "<" in str(one.specifier)}
    assert [one.specifier for one in LIBRARY] == [bounded.get(one.name, SpecifierSet()) for one in LIBRARY]


def test_an_epoch_is_planned_without_torch(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", *NAMES)
    planned = run(python, ROOT / "examples" / "plan_only.py", sample_folder(), at=tmp_path)
    assert "epoch 0: 1 steps of 12 clips" in planned
    assert "captions that are not UTF-8 are left out, as their encoding is not known: pip install chardet" in planned


@pytest.mark.slow
def test_a_loop_of_its_own_needs_torch_beside(tmp_path: Path) -> None:
    """Every module of the library can be imported, and a training on two processes saves and goes on with one."""
    python = environment(tmp_path / "venv", *NAMES, "torch")
    number, *others = run(python, "-c", IMPORTED, at=tmp_path).split()
    assert int(number) > 100
    assert not others
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    loop = ROOT / "examples" / "own_loop.py"
    run(python, *command, "2", loop, sample_folder(), "--steps", "3", at=tmp_path, OMP_NUM_THREADS="1")
    further = run(python, *command, "1", loop, sample_folder(), "--steps", "4", at=tmp_path, OMP_NUM_THREADS="1")
    assert "goes on at step 3" in further
    assert "step 4 epoch" in further


def test_the_program_works_without_extras(tmp_path: Path) -> None:
    """A command that needs more says which line installs it."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    python = environment(tmp_path / "venv", *(Requirement(each).name for each in needed))
    for command, package in ((("import", "job.yaml"), "tree_sitter"), (("ui", "."), "fastapi")):
        done = subprocess.run(
            [python, "-m", "reelworks", *command], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
        )
        assert done.returncode == 2
        assert package in done.stderr
        assert f'pip install "reelworks[{"page" if package == "fastapi" else "import"}]"' in done.stderr
