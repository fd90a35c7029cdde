"""The notebook runs from its first cell to its last, and is kept without outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
