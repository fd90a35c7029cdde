"""The notebook runs from its first cell to its last, and is kept without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "lora-in-ten-minutes.ipynb"
SMALL = """
MODEL, TRIGGER, PICTURES, STEPS = "wan-tiny", "rwmug", "", 2
PROMPTS = ["a mug"]
"""


def test_it_is_kept_small() -> None:
    nbformat = pytest.importorskip("nbformat", reason="notebooks are read by nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    assert NOTEBOOK.stat().st_size < 20_000


RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(sys.stdin):
    shell.run_cell(cell).raise_error()
"""
RECORD = """#!{python}
import json, pathlib, sys
pathlib.Path("lora.toml").touch()
with open("called", "a", encoding="utf-8") as called:
    called.write(json.dumps(sys.argv[1:]) + "\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="what stands for the program is a script with its interpreter's path")
@pytest.mark.parametrize("kind", ["str", "Path"])
def test_settings_reach_the_commands_as_they_are_written(tmp_path: Path, kind: str) -> None:
    """Colab's folder has a space, others lie in the home; prompts have quotes, signs of shells, and signs beyond 16 bits."""
    pytest.importorskip("IPython", reason="cells are run by IPython")
    settings: dict[str, Any] = {"MODEL": "sdxl", "TRIGGER": "rw$mug", "PICTURES": "~/My Drive/mug's", "STEPS": 2}
    settings["PROMPTS"] = ['Anna\'s "desk"; `ls` $HOME \\ {x}', "a mug \U0001f600"]
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]]
    run = ["from pathlib import Path", *(f"{name} = {value!r}" for name, value in settings.items())]
    run += [f"PICTURES = {kind}(PICTURES)"]
    run += [
        cell for cell in cells if "if not PICTURES" in cell or "!reelworks new " in cell or "!reelworks train " in cell
    ]
    pictures = tmp_path / "My Drive" / "mug's"
    pictures.mkdir(parents=True)
    program = tmp_path / "reelworks"
    program.write_text(RECORD.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "IPYTHONDIR": str(tmp_path)}
    environment["HOME"] = str(tmp_path)
    ways: dict[str, Any] = {"cwd": tmp_path, "env": environment, "text": True, "check": True, "capture_output": True}
    subprocess.run([sys.executable, "-c", RUN], input=json.dumps(run), **ways)
    new, train = map(json.loads, (tmp_path / "called").read_text(encoding="utf-8").splitlines())
    values = [str(pictures), "sdxl", settings["TRIGGER"], "2"]
    assert [new[new.index(f"--{name}") + 1] for name in ("data", "model", "trigger", "steps")] == values
    assert tomllib.loads(train[train.index("--set") + 1]) == {"samples": {"prompts": settings["PROMPTS"]}}


@pytest.mark.slow
def test_it_trains_a_lora_from_its_own_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (settings,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    settings.source = SMALL
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    with safe_open(tmp_path / "lora.safetensors", "pt") as lora:
        assert any("lora" in name for name in lora.keys())  # noqa: SIM118
    outputs = [str(output) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/jpeg" in output for output in outputs) >= 5, "pictures, sheets and previews"
    assert not any("error: " in output for output in outputs), outputs
    assert len(nbformat.writes(notebook)) < 500_000
