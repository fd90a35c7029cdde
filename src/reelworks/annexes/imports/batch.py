"""Read the commands of a batch file of Windows without running it: `set`, `%NAME%`, `!NAME!` and lines that ^ continues.

What stands in an `if` or `for`, or behind a label, may be run or not: variables that are set there are unknown afterwards.
"""

from __future__ import annotations

import re

from reelworks.annexes.imports.script import Command, Partly, Script, Unknown, Value, entered, from_start

_SET = re.compile(r"@?set\s+(?:/a\s+)?(?:\"(\w+)=(.*)\"|(\w+)=(.*))\s*", re.IGNORECASE)
_VARIABLE = re.compile(r"%(\*|\d|~\w*\d|\w+)%?|!(\w+)!")
_MAYBE = re.compile(r"@?(if|for)\b", re.IGNORECASE)
_SKIPPED = re.compile(r"@?(rem|echo|pause|exit|goto|call|setlocal|endlocal|title)\b|::|:\w", re.IGNORECASE)
_ENTERS = frozenset({"cd", "chdir", "pushd", "popd"})
_FOLDER = "CD"  # the variable of the folder that commands run in
_OWN_FOLDER = re.compile(r"%~dp0\\?", re.IGNORECASE)
_ENDS = frozenset({"&&", "||", "|", "&", ">", ">>", "2>&1"})


def follow(text: str) -> Script:
    """Follow a batch file."""
    script, depth = Script(), 0
    joined = re.sub(r"[ \t]*\^[ \t]*\r?\n[ \t]*", " ", _OWN_FOLDER.sub("./", text))
    for number, line in enumerate(joined.splitlines(), 1):
        line = line.strip()
        is_maybe = depth > 0 or _MAYBE.match(line) is not None
        bare = re.sub(r'"[^"]*"', "", line)
        depth = max(0, depth + bare.count("(") - bare.count(")"))
        inner = (
            re.sub(r"^@?(?:if|for)\b.*?(?=\bset\b|$)", "", line, flags=re.IGNORECASE) if _MAYBE.match(line) else line
        )
        if (found := _SET.match(inner.strip("()"))) is not None:
            name, value = (found[1] or found[3]).upper(), found[2] if found[1] else found[4]
            _set(script, name, value, is_maybe=is_maybe)
        elif line and not _MAYBE.match(line) and not _SKIPPED.match(line) and line.strip("()"):
            for command in _commands(line, script.variables, number):
                _add(script, command, is_maybe=is_maybe)
    script.variables.pop(_FOLDER, None)
    return script


def _add(script: Script, command: Command, *, is_maybe: bool) -> None:
    """Add a command, or enter the folder that it names."""
    name, *words = command.words
    now, source = script.variables.get(_FOLDER, "."), " ".join(command.words)
    if name.lower().removeprefix("@") in _ENTERS:
        folder = entered(now, [word for word in words if word.lower() != "/d"], source)
        script.variables[_FOLDER] = Unknown("%CD%", f"is set by {source[:60]!r}") if is_maybe else folder
    else:
        command.words = [from_start(now, word) for word in command.words]
        script.commands.append(command)


def _set(script: Script, name: str, text: str, *, is_maybe: bool) -> None:
    value: Value = _VARIABLE.sub(lambda found: _known(found, script.variables), text)
    former = script.variables.get(name)
    if isinstance(former, Unknown) and re.search(rf"[%!]{name}[%!]", text, re.IGNORECASE):
        value = former
    elif is_maybe and former != value:
        value = Unknown(f"%{name}%", "is set under a condition", "-" in f"{former}{value}")
    script.variables[name] = value


def _known(found: re.Match[str], variables: dict[str, Value]) -> str:
    value = variables.get((found[1] or found[2]).upper())
    return value if isinstance(value, str) else found[0]


def _commands(line: str, variables: dict[str, Value], number: int) -> list[Command]:
    """Return the commands of a line."""
    commands, words = list[Command](), list[tuple[str, str]]()
    for raw in [*re.findall(r'(?:[^\s"]|"[^"]*")+', line), "&"]:
        if raw in _ENDS:
            if words:
                commands.append(_command(words, variables, number))
            words = []
            continue
        value = _VARIABLE.sub(lambda found: _known(found, variables), raw)
        # Options that a variable holds are words of their own.
        pieces = re.findall(r'(?:[^\s"]|"[^"]*")+', value) if _VARIABLE.fullmatch(raw) else [value]
        words += [(piece.replace('"', ""), raw) for piece in pieces]
    return commands


def _command(words: list[tuple[str, str]], variables: dict[str, Value], number: int) -> Command:
    command = Command()
    for text, raw in words:
        left = _VARIABLE.search(text)
        if left is not None and left[1] == "*":
            command.notes["%*"] = "stands for arguments that the file is called with; none are given here"
            if text == "%*":
                continue
        elif left is not None:
            value = variables.get((left[1] or left[2]).upper())
            unknown = value if isinstance(value, Unknown) else Unknown(left[0], "the file does not set")
            is_whole = _VARIABLE.fullmatch(raw) is not None
            text = Partly(text, Unknown(left[0], unknown.why, unknown.has_options and is_whole, is_whole))
        command.add(text, f" (line {number})")
    return command
