"""The commands of a script, as far as they could be followed without running it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from reelworks.core.errors import UserError


class Unknown(NamedTuple):
    """A value that nobody knows here: how the script writes it, why, and whether it may hold options."""

    source: str
    why: str
    has_options: bool = False


class Partly(str):
    """A text in which something is unknown, which stands there as the script writes it."""

    unknown: Unknown

    def __new__(cls, text: str, unknown: Unknown) -> Partly:
        """Make one of a text."""
        made = super().__new__(cls, text)
        made.unknown = unknown
        return made


Value = str | list[str] | Unknown


@dataclass
class Command:
    """A command.

    Attributes:
        words: Its words; what is unknown in one stands there as the script writes it.
        unread: What could not be followed and may hold any options, each as a part of a sentence.
        notes: Why values are unknown, by how the script writes them.
    """

    words: list[str]
    unread: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def require_followed(self, file: str) -> None:
        """Refuse a command of which options may be missing here: they would become the trainer's defaults."""
        if self.unread:
            raise UserError(
                f"the command has {self.unread[0]}: the options in it are not known",
                code="script-not-followed",
                field="FILE",
                value=file,
                remedy="write these options out in the script, or give the whole command line with --command",
            )


@dataclass
class Script:
    """Commands, variables and written files of a script, as far as it is followed.

    Attributes:
        commands: All commands in their order, but for those that only print.
        variables: What they are set to at its end.
        files: Contents of files that it writes from its own text, by name.
    """

    commands: list[Command] = field(default_factory=list)
    variables: dict[str, Value] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def assign(self, name: str, value: Value, *, appends: bool) -> None:
        """Set a variable, or append to it; what is unknown of either stays so."""
        former = self.variables.get(name, "") if appends else ""
        if isinstance(former, Unknown) or isinstance(value, Unknown):
            value = former if isinstance(former, Unknown) else value
        elif isinstance(former, list) and isinstance(value, str):
            value = [f"{former[0] if former else ''}{value}", *former[1:]]
        elif appends and (isinstance(former, list) or isinstance(value, list)):
            value = [
                *([former] if isinstance(former, str) and former else former),
                *([value] if isinstance(value, str) else value),
            ]
        elif appends:
            unknown = next((each.unknown for each in (former, value) if isinstance(each, Partly)), None)
            value = f"{former}{value}" if unknown is None else Partly(f"{former}{value}", unknown)
        self.variables[name] = value

    def unread_variables(self) -> dict[str, str]:
        """Return why variables are unknown, by name."""
        return {name: value.why for name, value in self.variables.items() if isinstance(value, Unknown)}
