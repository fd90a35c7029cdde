"""Code that a recipe names runs after this user agreed to its file, once; a program of the user's own is not asked."""

import sys
from pathlib import Path

import places
import pytest
from refused import refused

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
