"""The terminal: the one way by which anything is printed.

File names, captions and prompts come from strangers. What a terminal takes as a command in them (ESC, OSC, carriage
returns, marks that turn the direction of text) is shown as a sign, and rich's markup in them is text. So is a line's end
behind which a text would begin a line of its own: those of messages are indented.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TextIO

from reelworks.core import system
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

# All controls but tab and the line feeds of messages, and what overrides the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|(?!^)\n(?![ \n\\]}]|\\Z)")

_last_output = time.monotonic()


class Steady:
    """A stream that ends no work: it takes every text, and after a write that fails it leaves out all others.

    Attributes:
        lost: The error of that write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text; a name that is no text, or a terminal without Unicode, is no reason to end a command."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._try(self._stream.write, text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Write what waits."""
        self._try(self._stream.flush)

    def _try(self, call: Callable[..., object], *arguments: str) -> None:
        if self.lost is None:
            try:
                call(*arguments)
            except (OSError, ValueError) as error:  # such as a reader that has ended, a full disk, or a closed stream
                self.lost = error
            except RuntimeError:  # of a handler of signals, which prints while the program waits in a write
                pass


@lru_cache(maxsize=4)
def steady(stream: TextIO | Steady) -> Steady:
    """Return a stream as one that ends no work, the same each time."""
    return stream if isinstance(stream, Steady) else Steady(stream)


def use_steady_streams() -> None:
    """Let nothing that is printed end the program; on Windows, streams that are no terminal have the code page of a country."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if system.WINDOWS else None)
            setattr(sys, name, steady(stream))


def require_answered() -> None:
    """Tell of an answer that stdout did not take; if its reader wanted no more of it, end as SIGPIPE ends programs.

    Raises:
        UserError: It could not be written.
        SystemExit: The reader has ended.
    """
    lost: Exception | None = getattr(sys.stdout, "lost", None)
    if isinstance(lost, BrokenPipeError):
        raise SystemExit(128 + 13)
    if lost is not None:
        problem, remedy = (
            f"it cannot be written to ({lost})",
            "send it to a disk that has room, or to a program that reads it",
        )
        raise UserError(problem, code="output-unwritable", field="standard output", remedy=remedy)


def last_output() -> float:
    """Return when something was printed last, by `time.monotonic`."""
    return _last_output


def plain(text: str) -> str:
    """Return text in which every control is a sign of one column: ␛ for ESC."""
    return _CONTROLS.sub(_sign, text)


def say(text: str, *, error: bool = False, is_file: bool = False) -> None:
    """Print a line at once, so that it keeps its place among the lines of other processes; to stderr as an `error`.

    What could be a file has the lines that it would have there.
    """
    stream = sys.stderr if error else sys.stdout
    if stream is not None:  # None if the caller closed it
        _note_output()
        print(*map(plain, text.split("\n") if is_file else [text]), sep="\n", file=steady(stream), flush=True)


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
        @property  # type: ignore[misc]
        def file(self) -> Any:
            return steady(super().file)

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
