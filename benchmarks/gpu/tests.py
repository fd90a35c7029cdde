"""The tests of tests/gpu on the device: all that are marked `gpu`, or on a CPU their quick twins."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
_LIMIT_SECONDS = 150  # of one file


def rows(_: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield counts for each file, and a row for each test that failed.

    Raises:
        RuntimeError: A test failed, or a file could not be run to its end.
    """
    bad = 0
    for file in sorted((ROOT / "tests" / "gpu").glob("test_*.py")):
        for row in _of_file(file, "gpu" if device == "cuda" else "not gpu and not slow"):
            bad += row.get("failed", 0) + ("error" in row)
            yield row
    if bad:
        raise RuntimeError(f"{bad} tests failed")


def _of_file(file: Path, marks: str) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # Warnings of another version of torch are no reason to fail here.
        command = [sys.executable, "-m", "pytest", str(file), "-o", "addopts=", "-o", "filterwarnings=default"]
        command += ["-v", "-p", "no:cacheprovider", "-m", marks, "--tb=short", f"--junitxml={report}"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_SECONDS, encoding="utf-8"
            )
        except subprocess.TimeoutExpired as late:
            told = (late.stdout or b"").decode(errors="replace")[-800:]
            yield {"file": file.name, "error": f"not done after {_LIMIT_SECONDS} s: {told}"}
            return
        if not report.exists():
            yield {"file": file.name, "error": (done.stdout + done.stderr)[-1500:]}
            return
        suite = next(ElementTree.parse(report).iter("testsuite"))
    total, failed, skipped = (int(suite.get(key, 0)) for key in ("tests", "failures", "skipped"))
    failed += int(suite.get("errors", 0))
    counts = {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}
    yield {"file": file.name, **counts, "seconds": round(float(suite.get("time", 0)), 1)}
    for case in suite.iter("testcase"):
        for problem in [*case.findall("failure"), *case.findall("error")]:
            yield {"test": str(case.get("name")), "message": (problem.text or "").strip()[-800:]}
