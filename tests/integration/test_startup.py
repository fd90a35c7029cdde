"""What a command imports before it first says something, and so how soon it answers."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tiny_recipe

from reelworks.training.recipe import recipe_file

SLOW = {"rich", "torch", "av", "pyarrow", "plotly", "tensorboard", "numpy"}
# Takes half a second and more: whoever runs a command knows first that it works.
SLOWEST = {"torch", "diffusers", "transformers", "peft", "bitsandbytes", "pandas", "scipy", "av", "pyarrow", "plotly"}
RUN = """
import io, os, sys
from reelworks.commands import main

until = sys.argv.pop(1)

class Until(io.RawIOBase):
    said = ""
    def writable(self):
        return True
    def write(self, text):
        self.said += str(text, "utf-8")
        if self.said.strip() and until in self.said:
            os.write(1, self.said.encode())
            os.write(2, (" ".join(sys.modules)).encode())
            os._exit(0)
        return len(text)

sys.stdout = sys.stderr = io.TextIOWrapper(Until(), "utf-8", write_through=True)
main.main()
"""


def before_it_says(until: str, *arguments: str, cwd: object = None) -> tuple[str, set[str]]:
    """Run a command until it says a text (or, of "", anything); return what it said, and what it has imported.

    On a busy machine lines of progress may come before it.
    """
    command = [sys.executable, "-c", RUN, until, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, encoding="utf-8")
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["checkpoints", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    said, loaded = before_it_says("", *arguments)
    assert "Usage" in said
    assert not SLOW & loaded


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("new lora --model wan --data pictures", "reading pictures"),
        ("train --model wan --data pictures", "reading pictures"),
        ("generate run -o a.png --prompt x", "loading the libraries"),
        ("checkpoints export run -o a.safetensors --merge", "loading the libraries"),
    ],
)
@pytest.mark.quick_cases(1)
def test_a_command_says_what_it_does_before_it_loads_libraries(arguments, says, tmp_path):
    (tmp_path / "pictures").mkdir()
    said, loaded = before_it_says(says, *arguments.split(), cwd=tmp_path)
    assert says in said
    assert not SLOWEST & loaded


_LEAVES_OUT = "from reelworks.core import optional_imports; optional_imports.leave_out_unused(); "
_FINDS = "print(optional_imports.diffusers().utils.is_bitsandbytes_available()); import bitsandbytes"
_BETA = """
from diffusers import FlowMatchEulerDiscreteScheduler as Scheduler  # has no scipy, though others can import it
import sys
assert "scipy" not in sys.modules
optional_imports.with_scipy(Scheduler)
Scheduler(use_beta_sigmas=True).set_timesteps(4)
from transformers.utils import is_scipy_available
print(is_scipy_available())
"""
_ARROW = """
optional_imports.settle_arrow()
import pyarrow, sys
pyarrow.array([1])
assert "pandas" not in sys.modules
print(len(pyarrow.table({"a": [1]}).to_pandas()) == 1)
"""
# Libraries load parts of others on demand: what one of them has loaded is not there where it is the first.
_FIRST = "print(optional_imports.transformers().utils.logging.get_verbosity() == 40)"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        pytest.param(_LEAVES_OUT.split(";")[0] + ";" + _FINDS, "True", id="program", marks=pytest.mark.slow),
        pytest.param(_LEAVES_OUT + _FINDS, "False", id="command", marks=pytest.mark.slow),
        pytest.param(
            _LEAVES_OUT + "optional_imports.from_diffusers('FluxTransformer2DModel')" + _BETA,
            "True",
            id="scipy",
            marks=pytest.mark.slow,
        ),
        pytest.param(_LEAVES_OUT + _ARROW, "True", id="pandas"),
        pytest.param(_LEAVES_OUT + _FIRST, "True", id="first"),
    ],
)
def test_only_commands_leave_libraries_out_and_what_needs_one_has_it(code, found):
    """A program of one's own imports others as they are; in a command a library comes when something asks for it."""
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout.strip() == found


_INTERRUPTED = """
import sys
from reelworks.__main__ import main

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
main()
"""


def test_ctrl_c_while_the_commands_are_imported_is_no_traceback():
    """The program's entry imports nothing itself."""
    scripts = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {"reelworks": "reelworks.__main__:main"}
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nstopped by Ctrl-C\n")


_STOPPED = """
import os, signal, sys
from reelworks.commands import main

class Stops:
    def find_spec(self, name, path=None, target=None):
        if name == "reelworks.training.loop.trainer":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stops())
sys.argv[0] = "reelworks"
main.main()
"""


def test_a_scheduler_that_stops_a_training_while_it_loads_starts_it_again(tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(recipe_file.dump(recipe_file.parse(tiny_recipe.least())), encoding="utf-8")
    command = [sys.executable, "-c", _STOPPED, "train", str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 75
    assert done.stdout.endswith("; the same command goes on\n")
