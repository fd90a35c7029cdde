"""Scripts are read as bash would run them, without being run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drills import import_scripts
from drills._imports.scripts import CASES, ScriptCase


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash judges")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.quick_cases(6)
def test_a_script_is_what_bash_runs(case: ScriptCase, tmp_path: Path) -> None:
    what, why = import_scripts.outcome(case, tmp_path)
    assert (what, why) == ("right" if case.is_read else "refused", "")
