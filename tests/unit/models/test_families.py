"""A family lives in its folder: the registry finds it, and nothing else in the package names it."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sources
from refused import refused

from reelworks.models import families, registry
from reelworks.models.diffusers_denoiser import DiffusersNetwork

SOURCE = Path(families.__file__).parents[2]
FOLDERS = sorted(spec.parent for spec in Path(families.__file__).parent.glob("*/spec.py"))
# The model of a recipe that names none, and that of the demo.
ALLOWED = {
    "models/config.py": {"stdit3-xl"},
    "demo": {"stdit3-tiny"},
}


def names() -> set[str]:
    """Everything that a recipe or a command may call a family, a preset, or a component of its own."""
    tables = (registry.PRESETS, registry.AUTOENCODERS, registry.TEXT_ENCODERS, registry.SHORT_NAMES)
    return {name for table in tables for name in table}


def named_outside(root: Path) -> list[str]:
    """Texts of the code, docstrings apart, that name a family, and imports from a family's folder."""
    found, known = [], names()
    for file in root.rglob("*.py"):
        where = file.relative_to(root).as_posix()
        # Importers say which model another trainer means by a name.
        if where.startswith(("models/families/", "annexes/imports/")):
            continue
        allowed = {name for start, some in ALLOWED.items() if where.startswith(start) for name in some}
        for node in ast.walk(sources.parsed(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in known - allowed:
                found.append(f"{where}:{node.lineno}: {node.value!r}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reelworks.models.families"):
                found.append(f"{where}:{node.lineno}: from {node.module}")
    return found


@pytest.mark.slow
def test_nothing_outside_a_familys_folder_names_it() -> None:
    assert named_outside(SOURCE) == []


def test_a_name_outside_is_found(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "step.py").write_text(
        'if name == "wan-2.2-5b":\n    from reelworks.models.families.wan.spec import WanConfig\n', encoding="utf-8"
    )
    assert len(named_outside(tmp_path)) == 2


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_folder_has_the_same_files_and_a_tiny_preset(folder: Path) -> None:
    family = next(f for f in registry.families() if f.network.split(".")[-2] == folder.name)
    assert {"__init__.py", "spec.py", "family.toml", "network.py"} <= {file.name for file in folder.iterdir()}
    assert any(name.endswith("-tiny") for name in family.presets)
    network = registry.load_network(family)
    if isinstance(network, DiffusersNetwork):
        assert network.encode_text.keys() == family.text_encoders.keys()


def test_all_folders_are_collected_without_torch() -> None:
    code = (
        "import sys\nfrom reelworks.models import registry\n"
        f"assert len(registry.families()) == {len(FOLDERS)}\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_taken_is_refused() -> None:
    """And nothing of the family is known then."""
    wan = registry.family_of("wan-tiny")
    other = replace(wan, name="other", presets={"other-tiny": wan.presets["wan-tiny"]}, short_names={})
    with refused("duplicate-family-name", "family"):
        registry.register(other)
    assert "other-tiny" not in registry.PRESETS
