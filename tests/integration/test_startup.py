"""What answers at once must not import what is slow to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = {"rich", "torch", "av", "pyarrow", "plotly", "tensorboard", "numpy"}


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["checkpoints", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom reelworks.cli.main import main\n"
        f"sys.argv = ['reelworks', *{arguments!r}]\n"
        "try:\n    main()\nfinally:\n    print('loaded:', *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert not SLOW & set(done.stderr.partition("loaded:")[2].split())
