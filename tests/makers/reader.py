"""A reader of the documentation: types the commands of a page into a shell, in order, and compares what is printed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pages
from pages import Printed, Typed

Meanwhile = Callable[["subprocess.Popen[str]"], None]
_ANNOUNCED = re.compile(
    r"(?m)^(adding|averaging|comparing|converting|decomposing|drawing|loading|making|planning|reading|running|sampling|saving|"
    r"scanning|uploading|validating|writing)\b.*\n"
)


class Reader:
    """Types the lines of one page in a folder of its own.

    What a page takes for granted (pictures, recipes, runs) is laid out before, under the names that the page uses.

    Attributes:
        folder: Where the reader works; empty at first but for the project's recipes.
        adds: Words to add to lines that begin so, such as fewer steps than a page's training has.
        names: What to type for words in capitals that no file can stand for.
        codes: Exit codes of lines that begin so, where they are not 0.
        meanwhile: What to do while a line that begins so is running.
        printed: All that was printed, in order.
    """

    def __init__(self, page: str, folder: Path, *, not_typed: set[str], not_printed: set[str], loose: set[str]) -> None:
        self.page, self.folder = page, folder
        self.adds: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.codes: dict[str, int] = {}
        self.meanwhile: dict[str, Meanwhile] = {}
        self.printed = ""
        self._steps = pages.steps(page)
        self._not_typed, self._not_printed, self._loose = not_typed, not_printed, loose
        self._environment = _environment(folder)
        shutil.copytree(pages.ROOT / "recipes", folder / "recipes")

    def reads(self, until: str | None = None) -> None:
        """Go through the page up to a text that occurs in it once, or to its end."""
        end = len(self._text) if until is None else self._place(until)
        while self._steps and self._steps[0].place < end:
            step = self._steps.pop(0)
            if isinstance(step, Printed):
                self._compare(step)
            elif step.line not in self._not_typed:
                self._type(step)

    def types(self, line: str, code: int = 0, meanwhile: Meanwhile | None = None) -> str:
        """Type a line into a shell; return what it printed, errors included."""
        # Waited for also where it is killed: else a later test would be told of it.
        with subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell in the background, such as that of these tests, ignores Ctrl-C, and so would its programs.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            encoding="utf-8",
        ) as process:
            try:
                if meanwhile is not None:
                    meanwhile(process)
                said, _ = process.communicate(timeout=400)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == code, f"{self.page}: {line}\nends with code {process.returncode}:\n{said}"
        self.printed += said
        return said

    def writes(self, name: str, text: str) -> None:
        """Write a file of the reader's own."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def block(self, containing: str) -> str:
        """Return the only block of code of the page that has a text in it."""
        found = ["\n".join(block.lines) + "\n" for block in pages.blocks(self.page)]
        (block,) = [text for text in found if containing in text]
        return block

    def shrinks(self, program: Path) -> None:
        """Let `reelworks` be another program: one whose published models are tiny."""
        command = self.folder / ".bin" / "reelworks"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n', encoding="utf-8")
        command.chmod(0o755)
        self._environment["PATH"] = f"{command.parent}{os.pathsep}{self._environment['PATH']}"

    def knows(self, **variables: str) -> None:
        """Set variables of the shell."""
        self._environment |= variables

    def _type(self, step: Typed) -> None:
        line = re.sub(r"\b[A-Z]+\b", lambda name: self.names.get(name[0], name[0]), step.line)
        line += "".join(f" {words}" for start, words in self.adds.items() if step.line.startswith(start))
        code = next((code for start, code in self.codes.items() if step.line.startswith(start)), 0)
        meanwhile = next((do for start, do in self.meanwhile.items() if step.line.startswith(start)), None)
        self.types(line, code, meanwhile)

    def _compare(self, step: Printed) -> None:
        first = step.lines[0].strip()
        if first in self._not_printed:
            return
        # A busy machine announces what takes a second there and nowhere else.
        words = {line.split(maxsplit=1)[0].rstrip(":") for line in step.lines if line.strip()}
        said = _ANNOUNCED.sub(lambda line: line[0] if line[1] in words else "", self.printed)
        said = re.sub("─+", "", said)
        shown = "\n".join(step.lines)
        assert step.regex(exact=first not in self._loose).search(said), (
            f"{self.page} shows\n{shown}\nbut printed is\n{said}"
        )

    @property
    def _text(self) -> str:
        return (pages.ROOT / self.page).read_text(encoding="utf-8")

    def _place(self, text: str) -> int:
        assert self._text.count(text) == 1, f"{self.page}: {text!r} is there {self._text.count(text)} times"
        return self._text.index(text)


def when(condition: Callable[[], bool], then: int, seconds: float = 180.0) -> Meanwhile:
    """Return what sends a signal to the program of a line as soon as a condition holds."""

    def wait(process: subprocess.Popen[str]) -> None:
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            if condition():
                process.send_signal(then)
                return
            time.sleep(0.1)

    return wait


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell in which this installation is active, and nothing of other users."""
    active = Path(sys.executable).parent
    return os.environ | {
        "PATH": f"{active}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
        "HF_HOME": str(folder / ".hf"),
        "REELWORKS_CACHE": str(folder / ".cache"),
    }
