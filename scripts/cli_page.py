"""docs/reference/cli.md: every verb with its help, arguments, options and defaults, from the command definitions.

`generate_reference.py` writes it. What a verb does, and what an option means, stands in the help texts of
`reelworks/commands/` and of annexes, so that `--help` says the same; only links to other pages are added here.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.main import app

HEAD = """# Command line

<!-- Written by scripts/generate_reference.py (make reference); do not edit. -->

`reelworks VERB --help` prints the same for the installed version. [Exit codes](#exit-codes) are the same for all.

"""
# Pages that say more of a verb.
PAGES = {
    "check": ("the dtype contract", "../concepts/dtype-contract.md"),
    "checkpoints": ("checkpoints", "../concepts/checkpoints.md"),
    "checkpoints export": ("weights for use", "../concepts/checkpoints.md"),
    "checkpoints prune": ("free disk space", "../how-to/free-disk-space.md"),
    "coverage": ("find out why a clip is not trained", "../how-to/why-not-trained.md"),
    "demo-data": ("first run", "../start/first-run.md"),
    "generate": ("generate clips and pictures", "../how-to/generate.md"),
    "import": ("move here from another trainer", "../how-to/move-here.md"),
    "inspect": ("how buckets are proposed", "../concepts/buckets.md"),
    "lora": ("work with LoRA files", "../how-to/lora-files.md"),
    "new lora": ("train a LoRA", "../how-to/train-a-lora.md"),
    "publish": ("publish on the hub", "../how-to/publish.md"),
    "plan": ("reading a plan", "../start/reading-a-plan.md"),
    "unpack": (
        "read from archives and buckets",
        "../how-to/read-from-archives-and-buckets.md#parquet-with-the-files-in-it",
    ),
    "contact-sheet": ("companions", "../how-to/companions.md"),
    "replay": ("records of a run", "run-folder.md#records"),
    "report": ("the run folder", "run-folder.md"),
    "scan": ("clips and catalog", "../concepts/clips-and-catalog.md"),
    "train": ("resume after changes", "../how-to/resume-after-changes.md"),
}
_WORDS = {int: "whole number", float: "number", str: "text", Path: "path"}


class Verb(NamedTuple):
    """A command of the command line.

    Attributes:
        name: As it is typed, such as `checkpoints ls`.
        command: Its definition.
        verbs: Those below it, where it is a group.
    """

    name: str
    command: Any
    verbs: tuple[Verb, ...]


def page() -> str:
    """Return the whole page."""
    tops = list(_verbs(typer.main.get_command(app)))
    names = {verb.name for top in tops for verb in (top, *top.verbs)}
    assert PAGES.keys() <= names, f"no such verb: {PAGES.keys() - names}"
    parts = [HEAD + _contents(tops)]
    for top in tops:
        parts.append(_section(top, level=2))
        parts += [_section(verb, level=3) for verb in top.verbs]
    return "\n".join([*parts, _exit_codes()])


def _verbs(group: Any, prefix: str = "") -> Iterator[Verb]:
    """List the verbs of a group in the order of its help."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        full = f"{prefix}{name}"
        below = tuple(_verbs(command, f"{full} ")) if hasattr(command, "list_commands") else ()
        yield Verb(full, command, below)


def _contents(tops: list[Verb]) -> str:
    verbs = [verb for top in tops for verb in (top.verbs or (top,))]
    rows = [f"| [`{v.name}`](#{_anchor(v.name)}) | {_cell(_paragraphs(v)[0])} |" for v in verbs]
    return "\n".join(["| verb | what it does |", "|---|---|", *rows, ""])


def _section(verb: Verb, level: int) -> str:
    lines = [f"{'#' * level} {verb.name}", ""]
    if not verb.verbs or verb.command.params:
        lines += ["```", f"reelworks {verb.name} {_usage(verb.command)}".rstrip(), "```", ""]
    for paragraph in _paragraphs(verb):
        lines += [_marked(paragraph), ""]
    if verb.name in PAGES:
        title, target = PAGES[verb.name]
        lines += [f"More: [{title}]({target}).", ""]
    rows = [_row(one) for one in verb.command.params]
    if rows:
        lines += ["| | value | default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _usage(command: Any) -> str:
    """Arguments and the options that are needed, as they are typed."""
    words = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            metavar = parameter.metavar or parameter.name.upper()
            name = metavar.strip("[]").removesuffix("...")
            many = "..." if parameter.nargs == -1 else ""
            words.append(f"{name}{many}" if parameter.required else f"[{name}{many}]")
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {_placeholder(parameter)}")
    options = [one for one in command.params if one.param_type_name == "option" and not one.required]
    return " ".join([*words, *(["[OPTIONS]"] if options else [])])


def _placeholder(parameter: Any) -> str:
    return str(parameter.metavar or parameter.opts[0].removeprefix("--").upper())


def _row(parameter: Any) -> str:
    cells = (_names(parameter), _value(parameter), _default(parameter), _cell(parameter.help or ""))
    return f"| {' | '.join(cells)} |"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name.upper()).strip("[]").removesuffix("...")
        return _code(name)
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _value(parameter: Any) -> str:
    """What may be given, such as "whole number ≥ 1", and whether it may be given several times."""
    if getattr(parameter, "is_flag", False):
        return "flag"
    annotation = parameter.type_descriptor.annotation
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{word}`" for word in typing.get_args(annotation))
    kind = _kind(annotation)
    if issubclass(kind, enum.Enum):
        words = ", ".join(f"`{member.value}`" for member in kind)
    elif "|" in (parameter.metavar or "") and kind is str:
        words = _code(parameter.metavar)
    else:
        words = _WORDS[kind]
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    limits = [f"≥ {low:g}"] if low is not None else []
    limits += [f"≤ {high:g}"] if high is not None and high < 2**62 else []
    words = f"{words} {', '.join(limits)}".strip()
    return f"{words}; several" if parameter.nargs == -1 or getattr(parameter, "multiple", False) else words


def _kind(annotation: Any) -> type:
    """The type of one value: that inside a list, without None."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (annotation,) = [one for one in typing.get_args(annotation) if one is not types.NoneType]
    if typing.get_origin(annotation) is list:
        (annotation,) = typing.get_args(annotation)
    assert isinstance(annotation, type)
    return annotation


def _default(parameter: Any) -> str:
    if parameter.required:
        return "**needed**"
    value = parameter.default
    if getattr(parameter, "secondary_opts", None) and value is not None:
        return f"`{(parameter.opts if value else parameter.secondary_opts)[0]}`"
    if value is None or value is False:
        return "–"
    value = value.value if isinstance(value, enum.Enum) else value
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _paragraphs(verb: Verb) -> list[str]:
    text = inspect.cleandoc(verb.command.help or "")
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _cell(text: str) -> str:
    return _marked(text.rstrip(".")).replace("|", "\\|")


def _marked(text: str) -> str:
    """Set options, keys and file names that stand bare in a help text as code."""
    parts = re.split(r"(`[^`]*`)", text)
    bare = r"(--[a-z][\w-]*(?: [a-z_.]+\.\w+=\w+)?|\b[a-z]+\.[a-z_]+\b(?!\.\.)|(?<![\w/])\.[a-z0-9]{3,}\b|\{index\}|\b[A-Z]+/\w+(?:\.\w+)*)"
    return "".join(part if part.startswith("`") else re.sub(bare, r"`\1`", part) for part in parts)


def _code(text: str) -> str:
    """Code in a cell of a table; a bar in backticks would end the cell, or show its backslash."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _exit_codes() -> str:
    text, _, listed = inspect.cleandoc(ExitCode.__doc__ or "").partition("Attributes:")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, flags=re.MULTILINE)
    rows = [f"| {ExitCode[name].value} | {_cell(' '.join(meaning.split()))} |" for name, meaning in entries]
    _, *paragraphs = text.strip().split("\n\n")
    said = [line for paragraph in paragraphs for line in (" ".join(paragraph.split()), "")]
    return "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *rows, "", *said])
