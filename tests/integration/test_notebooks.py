"""The notebook runs from its first cell to its last, and is kept without outputs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
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
sys.executable = "./program"
for cell in json.load(sys.stdin):
    shell.run_cell(cell).raise_error()
"""
RECORD = """#!{python}
import json, sys
from pathlib import Path
Path(sys.argv[sys.argv.index("-o") + 1]).touch() if "-o" in sys.argv else None
with open("called", "a", encoding="utf-8") as called:
    called.write(json.dumps(sys.argv[3:]) + "\\n")
"""
SLOW_SAVE = """#!{python}
import signal, sys, time
from pathlib import Path
received = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: received.append(number))
Path("begun").touch()
while not received:
    time.sleep(0.01)
time.sleep(1.5)
if received.count(signal.SIGINT) < 2:  # by a second one, it leaves without a save
    Path("saved").touch()
sys.exit(75)
"""
# Python as it is before anything is installed, in a kernel: modules of its folder come first.
NOT_INSTALLED = """
import sys
from pathlib import Path
sys.path[:] = ["", "installed", *(p for p in sys.path if p and not Path(p, "reelworks", "__init__.py").exists())]
"""
INSTALL = """#!{python}
import sys
from pathlib import Path
if sys.argv[1:4] != ["-m", "pip", "install"]:
    sys.exit("1 problem")
Path("installed").mkdir()
Path("installed", "reelworks").symlink_to(Path(sys.argv[-1], "src", "reelworks").resolve())
"""
needs_scripts = pytest.mark.skipif(
    os.name == "nt", reason="what stands for the program is a script with its interpreter's path"
)


def cells_of(*texts: str) -> list[str]:
    """Return the two cells that all others need, and those with a text."""
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]]
    return [cell for cell in cells if any(text in cell for text in ("PICTURES = ", "def reelworks", *texts))]


def start(cells: list[str], program: str, folder: Path) -> subprocess.Popen[str]:
    """Start to run cells in a folder, as a kernel does; a script stands for Python with Reelworks."""
    pytest.importorskip("IPython", reason="cells are run by IPython")
    (folder / "program").write_text(program.format(python=sys.executable), encoding="utf-8")
    (folder / "program").chmod(0o755)
    environment = os.environ | {"HOME": str(folder), "IPYTHONDIR": str(folder)}
    shell = subprocess.Popen(
        [sys.executable, "-c", RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    assert shell.stdin is not None
    shell.stdin.write(json.dumps(cells))
    shell.stdin.close()
    shell.stdin = None
    return shell


@pytest.mark.slow
@needs_scripts
@pytest.mark.parametrize("kind", ["str", "Path"])
def test_settings_reach_the_commands_as_they_are_written(tmp_path: Path, kind: str) -> None:
    """Colab's folder has a space, others lie in the home; prompts have quotes, signs of shells, and signs beyond 16 bits."""
    settings: dict[str, Any] = {"MODEL": "sdxl", "TRIGGER": "rw$mug", "PICTURES": "~/My Drive/mug's", "STEPS": 2}
    settings["PROMPTS"] = ['Anna\'s "desk"; `ls` $HOME \\ {x}', "a mug \U0001f600"]
    pictures = tmp_path / "My Drive" / "mug's"
    pictures.mkdir(parents=True)
    first, second, *others = cells_of("if not PICTURES", 'reelworks("new"', 'reelworks("train"')
    changed = [*(f"{name} = {value!r}" for name, value in settings.items()), f"PICTURES = {kind}(PICTURES)"]
    shell = start([first, second, *changed, *others], RECORD, tmp_path)
    shell.communicate()
    assert shell.returncode == 0
    new, train = map(json.loads, (tmp_path / "called").read_text(encoding="utf-8").splitlines())
    values = [str(pictures), "sdxl", settings["TRIGGER"], "2"]
    assert [new[new.index(f"--{name}") + 1] for name in ("data", "model", "trigger", "steps")] == values
    assert tomllib.loads(train[train.index("--set") + 1]) == {"samples": {"prompts": settings["PROMPTS"]}}


@pytest.mark.slow
@needs_scripts
@pytest.mark.parametrize("was_installed", [False, True])
def test_it_installs_the_folder_beside_it_once_and_goes_on_whatever_the_doctor_tells(
    tmp_path: Path, was_installed: bool
) -> None:
    (tmp_path / "reelworks").symlink_to(NOTEBOOK.parents[2])
    before = [NOT_INSTALLED] if not was_installed else []
    shell = start([*before, *cells_of('reelworks("doctor")'), "print('went on')"], INSTALL, tmp_path)
    told = shell.communicate()[0]
    assert shell.returncode == 0, told
    assert "1 problem" in told
    assert "went on" in told
    assert (tmp_path / "installed").exists() != was_installed


@pytest.mark.slow
@needs_scripts
def test_each_settings_have_a_name_of_their_own(tmp_path: Path) -> None:
    settings = [
        ("rw mug", "me/a"),
        ("rw-mug", "me/a"),
        *(("rwmug", f) for f in ("me/a", "me-a", "me a", "you/a", "é", "中")),
    ]
    print_names = f"for TRIGGER, PICTURES in 2 * {settings}: print('name', name())"
    shell = start([*cells_of(), print_names], RECORD, tmp_path)
    names = [line for line in shell.communicate()[0].splitlines() if line.startswith("name ")]
    assert names[: len(settings)] == names[len(settings) :]
    assert len(set(names)) == len(settings)
    assert all(re.fullmatch(r"name [\w-]+", name) for name in names)


@pytest.mark.slow
@needs_scripts
@pytest.mark.parametrize("interrupt", [os.kill, getattr(os, "killpg", None)], ids=["kernel", "group"])
def test_the_stop_button_waits_until_the_training_has_saved(tmp_path: Path, interrupt: Any) -> None:
    """Jupyter interrupts all processes of a kernel's group, others the kernel alone. Here a save takes 1.5 s."""
    shell = start(cells_of('reelworks("train"'), SLOW_SAVE, tmp_path)
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    interrupt(shell.pid, signal.SIGINT)
    assert ": stopped" in shell.communicate()[0]
    assert (tmp_path / "saved").exists()


@pytest.mark.slow
def test_it_trains_a_lora_of_each_settings_as_often_as_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells; all of them again with pictures of one's own in place of the sample; the last one once more."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    settings, *others = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert settings.metadata["tags"] == ["parameters"]
    settings.source += SMALL
    own = nbformat.v4.new_code_cell('PICTURES = "own"; PROMPTS = ["a cat"]')
    cells = [settings, *others, own, *others[2:], others[-1]]
    notebook.cells = [nbformat.v4.new_code_cell(cell.source) for cell in cells]
    (tmp_path / "own").mkdir()
    for number in range(4):
        Image.new("RGB", (96, 80), (60 * number, 200, 90)).save(tmp_path / "own" / f"{number}.png")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    loras = [path for name in ("mug", "own") for path in tmp_path.glob(f"wan-tiny-rwmug-{name}-*.safetensors")]
    assert len(loras) == 2
    for path in loras:
        with safe_open(path, "pt") as lora:
            assert any("lora" in name for name in lora.keys())  # noqa: SIM118
    assert loras[0].read_bytes() != loras[1].read_bytes()
    outputs = [str(output) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/jpeg" in output for output in outputs) >= 10, "pictures, sheets and previews, twice"
    assert not any("error: " in output for output in outputs), outputs
    assert len(nbformat.writes(notebook)) < 500_000
