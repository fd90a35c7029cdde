"""A command that has done its work is not made to fail by a thread that asks for the interpreter later."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

# gloo's thread sleeps in its callback through the end of the program. The folder is cleaned up at exit.
_PROGRAM = """
import typer
from reelworks.commands import main

def work(code: int):
    import tempfile, time
    import torch, torch.distributed as dist
    folder = tempfile.TemporaryDirectory()
    dist.init_process_group("gloo", store=dist.FileStore(folder.name + "/store", 1), rank=0, world_size=1)
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    main.kept = future.then(lambda _: time.sleep(1.0)), folder
    print(main.kept[1].name)
    raise typer.Exit(code)

main.app = typer.Typer(add_completion=False)
main.app.command()(work)
main.main()
"""


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.slow(reason="as with another code")), 75])
@pytest.mark.slow
def test_the_code_is_the_commands_own_and_the_end_is_clean(code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(code)], capture_output=True, text=True, timeout=300, encoding="utf-8"
    )
    assert done.returncode == code
    assert done.stderr == ""
    folder = Path(done.stdout.strip())
    assert folder.is_absolute()
    assert not folder.exists()


def test_a_closed_output_is_no_error() -> None:
    """As of a command that a service starts without one."""
    program = "import typer\nfrom reelworks.commands import main\nmain.app = typer.Typer()\n"
    program += "main.app.command()(lambda: None)\nmain.main()"
    closed = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(program)} >&-"
    done = subprocess.run(["sh", "-c", closed], capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
