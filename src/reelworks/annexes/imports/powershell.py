"""Read the commands of a PowerShell script without running it: a strict reader of what scripts that start a training consist of.

Followed are assignments of texts, numbers, arrays and lists, `+=`, `.Add(…)`, and `if` by what the script sets. Whatever else
names a variable makes it unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from reelworks.annexes.imports.script import Command, Script, Unknown, Value

_NAME = r"\$\{?(?:env:)?([A-Za-z_]\w*)\}?"
_VARIABLE = re.compile(_NAME, re.IGNORECASE)
_IN_TEXT = re.compile(rf"\$\({_NAME}\)|{_NAME}", re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"(?:\[[^\]]+\]\s*)?{_NAME}\s*(\+?=)(?!=)\s*(.*)", re.IGNORECASE | re.DOTALL)
_ADD = re.compile(rf"(?:\[void\]\s*)?{_NAME}\.(Add|AddRange)\((.*)\)(?:\s*\|\s*Out-Null)?", re.IGNORECASE | re.DOTALL)
_EMPTY_LIST = re.compile(r"(?:\[[\w.\[\]]+\]::new\(\)|New-Object\s+[\w.\[\]]+|@\(\s*\))", re.IGNORECASE)
_IF = re.compile(r"(if|elseif|else)\b\s*", re.IGNORECASE)
_SKIPPED = re.compile(
    r"(Write-\w+|Read-Host|Set-Location|cd|param|exit|\.\\?[\w\\/.]*activate\S*|Activate\S*)\b", re.IGNORECASE
)
_QUOTED = r'"(?:[^"`]|`.|"")*"|\'(?:[^\']|\'\')*\''
_WORD = re.compile(rf"(?:{_QUOTED}|[^\s\"'])+", re.DOTALL)
_COMPARED = re.compile(r"(.+?)\s+-(eq|ne|gt|ge|lt|le)\s+(.+)", re.IGNORECASE | re.DOTALL)
_ENDS = frozenset({"&&", "||", "|", ";", ">", ">>", "2>&1"})


def follow(text: str) -> Script:
    """Follow a script."""
    script = Script()
    text = re.sub(r"<#.*?#>", "", text, flags=re.DOTALL)
    _run(re.sub(r"[ \t]*`[ \t]*\r?\n[ \t]*", " ", text), script)
    return script


def _run(text: str, script: Script) -> None:
    statements = [*_statements(text)]
    while statements:
        statement = statements.pop(0)
        if (found := _IF.match(statement)) is not None and found[1].lower() == "if":
            branches = [statement]
            while statements and (more := _IF.match(statements[0])) is not None and more[1].lower() != "if":
                branches.append(statements.pop(0))
            _branch(branches, script)
        elif (found := _ADD.fullmatch(statement)) is not None:
            value = _value(found[3], script)
            added = value if isinstance(value, list | Unknown) else [value]
            script.assign(found[1].lower(), added, appends=True)
        elif (found := _ASSIGNMENT.fullmatch(statement)) is not None:
            script.assign(found[1].lower(), _value(found[3], script), appends=found[2] == "+=")
        elif re.match(r"(foreach|for|while|switch|function|try|do)\b", statement, re.IGNORECASE):
            _forget(statement, script)
        elif not _SKIPPED.match(statement):
            script.commands += _commands(statement, script)


def _statements(text: str) -> Iterator[str]:
    """Yield statements without their comments; a line ends one unless a bracket is open."""
    parts, depth = list[str](), 0
    for token in re.findall(rf"{_QUOTED}|#[^\n]*|[(){{}}\n;]|[^\"'#(){{}}\n;]+|.", text, re.DOTALL):
        if token.startswith("#") and (not parts or not parts[-1] or parts[-1][-1:].isspace() or parts[-1] in "(){"):
            continue
        if token in ("\n", ";") and not depth:
            yield from _whole(parts)
            parts = []
            continue
        depth += (token in "({") - (token in ")}") if len(token) == 1 else 0
        parts.append(token)
        if token == "}" and not depth:
            yield from _whole(parts)
            parts = []
    yield from _whole(parts)


def _whole(parts: list[str]) -> Iterator[str]:
    if statement := "".join(parts).strip():
        yield statement


def _branch(branches: list[str], script: Script) -> None:
    """Run the first branch whose condition holds; of what others may set, nothing is known if that is unknown."""
    for branch in branches:
        found = _IF.match(branch)
        assert found is not None
        condition, body = "", branch[found.end() :]
        if found[1].lower() != "else":
            end = _closing(body)
            condition, body = body[1:end], body[end + 1 :]
        held = _holds(condition, script) if condition else True
        if held is None:
            for each in branches:
                _forget(each, script)
            return
        if held:
            _run(body.strip()[1:-1], script)
            return


def _closing(text: str) -> int:
    depth = 0
    for found in re.finditer(rf"{_QUOTED}|[()]", text, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return len(text)


def _forget(statement: str, script: Script) -> None:
    """Make what a statement sets unknown, and read its commands, which may be run or not."""
    names = [found[1] for found in re.finditer(rf"{_NAME}\s*(?:\+?=(?!=)|\.Add)", statement, re.IGNORECASE)]
    inner = Script(variables=dict(script.variables))
    for name in names:
        script.variables[name.lower()] = inner.variables[name.lower()] = Unknown(
            f"${name}", f"depends on {statement.partition('{')[0].strip()[:60]!r}", "--" in statement
        )
    start = statement.find("{")
    for line in _statements(statement[start + 1 : -1] if start >= 0 else ""):
        if not (_ADD.fullmatch(line) or _ASSIGNMENT.fullmatch(line) or _IF.match(line) or _SKIPPED.match(line)):
            script.commands += _commands(line, inner)


def _value(text: str, script: Script) -> Value:
    """Return the value of an expression."""
    text = text.strip()
    if _EMPTY_LIST.fullmatch(text):
        return []
    if text.startswith("@(") and _closing(text[1:]) == len(text) - 2:
        return _listed(text[2:-1], script)
    if len([*_split(text, ",\n")]) > 1:
        return _listed(text, script)
    if len(terms := [*_split(text, "+")]) > 1:
        found = [_value(term, script) for term in terms]
        unknown = next((each for each in found if isinstance(each, Unknown)), None)
        if unknown is not None:
            return unknown
        if any(isinstance(each, list) for each in found):
            return [piece for each in found for piece in _pieces(each)]
        return "".join(map(str, found))
    if text.startswith("(") and _closing(text) == len(text) - 1:
        return _value(text[1:-1], script)
    return _term(text, script)


def _term(text: str, script: Script) -> Value:
    if re.fullmatch(r"'(?:[^']|'')*'", text, re.DOTALL):
        return text[1:-1].replace("''", "'")
    if re.fullmatch(r'"(?:[^"`]|`.|"")*"', text, re.DOTALL):
        return _expanded(text[1:-1], script)
    if re.fullmatch(r"[-+]?[\d.]+(?:e[-+]?\d+)?", text, re.IGNORECASE):
        return text
    if text.lower() in ("$true", "$false", "$null", ""):
        return "" if text.lower() in ("$null", "$false") else text.lower().removeprefix("$")
    if (found := _VARIABLE.fullmatch(text)) is not None:
        return script.variables.get(found[1].lower(), Unknown(text, "the script does not set"))
    return Unknown(text, "is not followed")


def _expanded(text: str, script: Script) -> Value:
    unknown: list[Unknown] = []

    def known(found: re.Match[str]) -> str:
        value = script.variables.get((found[1] or found[2]).lower(), Unknown(found[0], "the script does not set"))
        if isinstance(value, Unknown):
            unknown.append(value)
            return found[0]
        return value if isinstance(value, str) else " ".join(value)

    done = re.sub(r"`(.)", r"\1", _IN_TEXT.sub(known, text).replace('""', '"'))
    return unknown[0] if unknown and unknown[0].has_options else done


def _listed(text: str, script: Script) -> Value:
    values = [_value(item, script) for item in _split(text, ",\n") if item.strip()]
    unknown = next((each for each in values if isinstance(each, Unknown)), None)
    return unknown or [piece for each in values for piece in _pieces(each)]


def _pieces(value: Value) -> list[str]:
    assert not isinstance(value, Unknown)
    return [value] if isinstance(value, str) else value


def _split(text: str, signs: str) -> Iterator[str]:
    """Yield the parts of an expression between signs that no quotes and brackets hold."""
    part, depth = "", 0
    for token in re.findall(rf"{_QUOTED}|#[^\n]*|.", text, re.DOTALL):
        if token.startswith("#"):
            continue
        depth += (token in "([{") - (token in ")]}") if len(token) == 1 else 0
        if token in signs and len(token) == 1 and not depth and (token != "+" or part.strip()):
            yield part
            part = ""
        else:
            part += token
    yield part


def _holds(condition: str, script: Script) -> bool | None:
    """Return whether a condition holds; None if that is unknown."""
    condition = condition.strip()
    bare = re.sub(r"""'[^']*'|"[^"]*\"""", lambda text: "x" * len(text[0]), condition)
    joints = [
        joint
        for joint in re.finditer(r"\s-(and|or)\s", bare, re.IGNORECASE)
        if bare[: joint.start()].count("(") == bare[: joint.start()].count(")")
    ]
    if joints:  # both bind alike, from left to right
        decides = joints[-1][1].lower() == "or"
        held = [_holds(part, script) for part in (condition[: joints[-1].start()], condition[joints[-1].end() :])]
        return decides if decides in held else None if None in held else not decides
    if condition.startswith("(") and _closing(condition) == len(condition) - 1:
        return _holds(condition[1:-1], script)
    if (negated := re.fullmatch(r"(?:-not\s*|!)(.*)", condition, re.IGNORECASE | re.DOTALL)) is not None:
        held_inside = _holds(negated[1], script)
        return None if held_inside is None else not held_inside
    if (found := _COMPARED.fullmatch(condition)) is not None:
        a, b = _value(found[1], script), _value(found[3], script)
        if not isinstance(a, str) or not isinstance(b, str):
            return None
        return _compared(a, found[2].lower(), b)
    value = _value(condition, script)
    if isinstance(value, Unknown):
        return None
    return bool(value) and value != "0"


def _compared(a: str, sign: str, b: str) -> bool | None:
    try:
        x, y = float(a or 0), float(b or 0)
    except ValueError:
        return {"eq": a.lower() == b.lower(), "ne": a.lower() != b.lower()}.get(sign)
    return {"eq": x == y, "ne": x != y, "gt": x > y, "ge": x >= y, "lt": x < y, "le": x <= y}[sign]


def _commands(statement: str, script: Script) -> list[Command]:
    commands, words, unread, notes = list[Command](), list[str](), list[str](), dict[str, str]()
    for raw in [*_WORD.findall(statement), ";"]:
        if raw in _ENDS:
            if words:
                commands.append(Command(words, unread, notes))
            words, unread, notes = [], [], {}
        elif raw == "&" and not words:
            continue
        elif (found := re.fullmatch(rf"@?{_NAME}|@([A-Za-z_]\w*)", raw, re.IGNORECASE)) is not None:
            name = found[1] or found[2]
            value = script.variables.get(name.lower(), Unknown(raw, "the script does not set"))
            is_value = bool(words) and words[-1].startswith("-") and "=" not in words[-1]
            if not isinstance(value, Unknown):
                words += [value] if isinstance(value, str) else value
            elif is_value and not value.has_options:
                words, notes[raw] = [*words, raw], value.why
            else:
                unread.append(f"{raw}, which {value.why}")
        else:
            words.append(_word(raw, script, unread, notes))
    return commands


def _word(raw: str, script: Script, unread: list[str], notes: dict[str, str]) -> str:
    """Return a word of a command, whose quotes may stand within it."""
    text = ""
    for piece in re.findall(rf"{_QUOTED}|[^\"']+", raw, re.DOTALL):
        value = piece[1:-1].replace("''", "'") if piece[0] == "'" else _expanded(piece.strip('"'), script)
        if isinstance(value, Unknown):
            unread.append(f"{raw}, which {value.why}")
            value = raw
        text += value if isinstance(value, str) else " ".join(value)
    for found in _IN_TEXT.finditer(text) if "'" not in raw else ():
        notes[found[0]] = "the script does not set"
    return text
