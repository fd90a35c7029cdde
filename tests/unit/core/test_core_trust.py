"""Code that a recipe names runs after this user agreed to its file, once; a program of the user's own is not asked."""

import io
import subprocess
import sys
from pathlib import Path

import places
import pytest
from refused import refused

from reelworks.commands import main
from reelworks.commands import trust as trust_command
from reelworks.core import trust

SHARP = """
from pathlib import Path
Path("ran").touch()
class Sharp:
    name, higher_is_better, requires_reference = "sharp", True, False
    def value(self, clip): return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trust, "_ask", None)
    (tmp_path / "sharp.py").write_text(SHARP, encoding="utf-8")
    return tmp_path


def test_it_is_asked_about_once_by_its_path(folder, monkeypatch):
    asked: list[Path] = []
    trust.ask_with(lambda path: asked.append(path) or True)  # type: ignore[func-returns-value]
    trust.require(["psnr", "sharp.py:Sharp"], "samples.metrics")
    trust.require(["./sharp.py:Sharp"], "samples.metrics")
    assert asked == [folder / "sharp.py"]
    places.link(folder / "link.py", "sharp.py")
    assert trust.untrusted(["link.py:Sharp", "other.py:Sharp"]) == [folder / "other.py"]


def test_what_a_command_starts_imports_nothing_from_the_folder_that_it_runs_in(folder, monkeypatch):
    """A module there may have the name of a library."""
    ended: list[int] = []
    child = [sys.executable, "-m", "sharp"]
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(main, "app", lambda: ended.append(subprocess.run(child, stderr=subprocess.DEVNULL).returncode))
    main.main()
    assert ended == [1]
    assert not Path("ran").exists()


def test_without_agreement_it_is_named_and_does_not_run(folder):
    from reelworks.inference.evaluate.measure import PreviewMetrics

    trust.ask_with(lambda path: False)
    for _ in range(2):
        with refused("code-not-trusted", field="samples.metrics") as caught:
            PreviewMetrics.named(["sharp.py:Sharp"], {}, "cpu")  # type: ignore[arg-type]
        assert str(folder / "sharp.py") in str(caught.value)
    assert not Path("ran").exists()


def test_a_program_of_the_users_own_is_not_asked(folder):
    from reelworks.inference.evaluate.measure import PreviewMetrics

    PreviewMetrics.named(["sharp.py:Sharp"], {}, "cpu")  # type: ignore[arg-type]
    assert Path("ran").exists()


def test_modules_of_the_environment_are_trusted_and_those_of_the_folder_are_not(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert trust.code_of("psnr") is None
    assert trust.code_of("torchmetrics.image:PeakSignalNoiseRatio") is None
    assert trust.code_of("no_such_module:X") is None
    assert trust.code_of("sharp:Sharp") == folder / "sharp.py"


def test_a_damaged_list_trusts_nothing(folder):
    trust.add([Path("sharp.py")])
    assert trust.untrusted(["sharp.py:Sharp"]) == []
    for text in ("", "3", "{", '[["x"]]', "[" * 5000):
        trust._file().write_text(text, encoding="utf-8")
        assert trust.untrusted(["sharp.py:Sharp"]) == [folder / "sharp.py"]


class _Typed(io.StringIO):
    """What somebody types on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "agrees"),
    [("y\n", True), (" YES \n", True), ("n\n", False), ("\n", False), ("", False), ("what?\n", False)],
)
def test_only_a_yes_agrees(folder, monkeypatch, typed, agrees):
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(sys, stream, _Typed(typed))
    assert trust_command.ask(folder / "sharp.py") is agrees


@pytest.mark.parametrize("of_ranks", [True, False])
def test_nobody_is_asked_without_a_terminal_or_by_each_of_several_processes(folder, monkeypatch, of_ranks):
    monkeypatch.setattr(sys, "stdin", _Typed("y\n"))
    monkeypatch.setattr(sys, "stderr", _Typed() if of_ranks else io.StringIO())
    if of_ranks:
        monkeypatch.setenv("RANK", "0")
    assert not trust_command.ask(folder / "sharp.py")
    assert not sys.stderr.getvalue()
