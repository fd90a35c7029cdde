"""The terminal: the one way by which anything is printed.

File names, captions and prompts come from strangers. What a terminal takes as a command in them (ESC, OSC, carriage
returns, marks that turn the direction of text) is shown as a sign, and rich's markup in them is text.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from reelworks.core import system

if TYPE_CHECKING:
    from rich.console import Console

# All controls but tab and line feed, and what overrides the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_last_output = time.monotonic()


def use_utf8() -> None:
    """Let stdout and stderr take every text: on Windows, those that are no terminal have the code page of a country."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if system.WINDOWS else None, errors="backslashreplace")


def last_output() -> float:
    """Return when something was printed last, by `time.monotonic`."""
    return _last_output


def plain(text: str) -> str:
    """Return text in which every control is a sign of one column: ␛ for ESC."""
    return _CONTROLS.sub(_sign, text)


def say(text: str, *, error: bool = False) -> None:
    """Print a line at once, so that it keeps its place among the lines of other processes; to stderr as an `error`."""
    stream = sys.stderr if error else sys.stdout
    if stream is not None:  # None if the caller closed it
        encoding = stream.encoding or "utf-8"
        _note_output()
        # A name that is no text, or a terminal without Unicode, is no reason to end a command.
        print(plain(text).encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def say_json(text: str) -> None:
    """Print a JSON text, whose strings keep their values: what a terminal takes as a command is escaped."""
    say(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def console(*, stderr: bool = False) -> Console:
    """Return a console for tables and progress, which shows texts as they are."""
    return _console_class()(stderr=stderr, highlight=False, markup=False, emoji=False)


@lru_cache
def _console_class() -> type[Console]:
    from rich.console import Console, ConsoleOptions, RenderableType  # which `import reelworks` does not need
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            _note_output()
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=plain(segment.text))

    return PlainConsole


def _note_output() -> None:
    global _last_output
    _last_output = time.monotonic()


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "\ufffd"
