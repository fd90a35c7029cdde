"""Read the commands of a PowerShell script without running it.

Followed are texts, numbers, switches, arrays and lists, what is set to them by `=`, `+=` and `.Add(…)`, sums, comparisons, and `if`
by what the script sets. Of all else nothing is known: neither its value nor what it sets. Blocks of a loop, of a function that is
called, and of a branch under a condition that is not known may be run or not.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from typing import Any

from reelworks.annexes.imports.script import (
    Command,
    Partly,
    Script,
    Unknown,
    Value,
    decided,
    entered,
    from_start,
    unknown_in,
)

_MOST_STEPS = 20_000  # statements that are followed, so that blocks of blocks end
_D, _S = '"\u201c\u201d\u201e', "'\u2018\u2019\u201a\u201b"  # those of print are quotes too
_INNER = rf"[^(){_D}{_S}]|[{_D}][^{_D}]*[{_D}]|[{_S}][^{_S}]*[{_S}]"
_INSERTED = rf"\$\((?:{_INNER}|\((?:{_INNER})*\))*\)"
_VARIABLE = r"\$(?:\{[^}]+\}|(?:\w+:)?\w+)"
_TEXT = (
    rf"@[{_D}][ \t]*\n(?:.*?\n)??[{_D}]@|@[{_S}][ \t]*\n(?:.*?\n)??[{_S}]@"
    rf"|[{_D}](?:{_INSERTED}|`.|[{_D}]{{2}}|[^{_D}`$]|\$(?!\())*[{_D}]|[{_S}](?:[^{_S}]|[{_S}]{{2}})*[{_S}]"
)
_COMMENT = rf"<\#.*?\#>|(?<![^\s(){{}};,|&{_D}{_S}])\#[^\n]*"
_MARK = (  # of a line that goes on in the next
    r"`[ \t]*\n[ \t]*|(?:(?<=[,|&])|(?<=\s[+=])|(?<=\s-or)|(?<=\s-and))[ \t]*(?:#[^\n]*)?\n"
    r"|\n(?=(?:\s|\#[^\n]*\n)*(?:\{|(?:else|elseif|catch|finally|until)\b))"
)
_SETTING = r"(?:[-+*/%]|\?\?)?=(?!=)|\+\+|--|in\b"
_OF_COMMANDS = r"(?:Write|Read|Get|Test|Join|Split|Set|New|Copy|Move|Remove|Out|Select|Where|ForEach|Tee|Measure)-\w+"
_KEYWORDS = "param|if|foreach|for|while|switch|function|filter|try|do|trap|class|enum|begin|process|end"


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


_TOKEN = _compiled(
    rf"(?P<mark>{_MARK})|(?P<comment>{_COMMENT})|{_TEXT}|`.|{_VARIABLE}|@\w+|[$@]?\(|@?\{{|[)}}]|&&|\|\||[\d*]?>>?(?:&\d)?"
    rf"|[\n;,|&+]|[^\S\n]+|[^\s{_D}{_S}`$@(){{}};,|&+>]+|."
)
_QUOTED, _NAMED, _TERM = _compiled(_TEXT), _compiled(_VARIABLE), _compiled(rf"{_TEXT}|{_VARIABLE}|{_INSERTED}")
_IN_TEXT = _compiled(rf"`.|[{_D}]{{2}}|{_INSERTED}|{_VARIABLE}")
_ASSIGNMENT = _compiled(rf"((?:\[[\w.\[\]]+\])?)\s*({_VARIABLE})\s*(\+?=)(?!=)\s*(.*)")
_SETS = _compiled(
    rf"{_VARIABLE}(?:\s*,\s*{_VARIABLE}|\.\w+|\[[^\]]*\])*\s*(?:{_SETTING})|(?:\+\+|--|\[ref\])\s*{_VARIABLE}|^param\b.*"
    rf"|(?P<call>(?:{_VARIABLE}[\w.]*\.|::)\w+\([^)]*)"
)
_ADDS = _compiled(rf"(?:\[void\]\s*|\$null\s*=\s*)?({_VARIABLE})\.(Add|AddRange)")
_LIST = _compiled(r"\[[\w.]*(?:ArrayList|List\[\w+\])\]::new\(\)|New-Object\s+[\w.]*(?:ArrayList|List\[\w+\])")
_KEYWORD = _compiled(rf"(?:\$[\w:]+\s*=\s*)?(?::\w+\s+)?({_KEYWORDS})\b")
_CLAUSE = _compiled(r"else|elseif|catch|finally|until|while|\[.*|\(.*")
_ENDING = _compiled(r"(?:exit|return|break|continue|throw)\b")
_EXPRESSION = _compiled(rf"[-$@(\[\d!+,{{{_D}{_S}]|\.\d")
_LOGICAL, _COMPARED = _compiled(r"-(and|or)"), _compiled(r"-i?(eq|ne|gt|ge|lt|le|like|notlike)")
_OPERATOR, _SPLITS = _compiled(r"-[a-z]+|[?|=]+"), _compiled(rf"[@({{{_D}{_S}]|\$\(|-\w[^{_D}{_S}]*?[.:]|--%$")
_QUIET = _compiled(rf"{_OF_COMMANDS}|echo|%|[\w./\\]*activate(?:\.ps1|\.bat)?")
_ENTERS = _compiled(r"(?:set|push|pop)-location|sl|cd|chdir|pushd|popd")
_FOLDER = "pwd"  # the variable of the folder that commands run in
_OPENS = ("(", "$(", "@(", "{", "@{")
_CONSTANTS = {"true": True, "false": False, "null": None, "psscriptroot": "."}  # the folder of the script
# How scripts for older versions than 3 spell it.
_OWN_FOLDER = re.compile(
    r"Split-Path\s+(?:-Parent\s+)?(?:-Path\s+)?\$MyInvocation\.MyCommand\.(?:Path|Definition)(?:\s+-Parent)?",
    re.IGNORECASE,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_UNSET = "the script does not set"


class _Leaves(Exception):  # noqa: N818
    """The script, or a block of it, ends."""


class _Growing(list[Any]):
    """A list that `.Add` grows, for every name that it has."""


def follow(text: str) -> Script:
    """Follow a script."""
    reader, text = _Reader(), _OWN_FOLDER.sub("$PSScriptRoot", text.replace("\r\n", "\n"))
    try:
        with suppress(_Leaves):
            reader.run(text)
    except RecursionError:
        reader.steps = _MOST_STEPS + 1
    tokens = [*_tokens(text)]
    opened = sum((token in _OPENS) - (token in (")", "}")) for token in tokens)
    if opened or reader.steps > _MOST_STEPS or {*tokens} & {*_D, *_S}:
        for command in reader.script.commands:  # of any, words may be missing
            command.unread.append("something open or too long in its script, which is not understood")
    return reader.script


class _Reader:
    """Values are texts, numbers, switches, None, lists of these, and `Unknown`."""

    def __init__(self) -> None:
        self.script = Script()
        self.variables: dict[str, Any] = {}
        self.steps = 0
        self._types: dict[str, str] = {}
        self._functions: dict[str, str] = {}

    @property
    def _folder(self) -> Value:
        folder: Value = self.variables.get(_FOLDER, ".")
        return folder

    # Statements return what they put out.

    def run(self, text: str) -> list[Any]:
        return [value for statement in _statements(text) for value in self._run(statement)]

    def _run(self, statement: str) -> list[Any]:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise _Leaves
        pieces, found = _pieces(statement), _KEYWORD.match(statement)
        groups, kind = [piece for piece in pieces if piece[0] in "({"], found[1].lower() if found else ""
        if self._adds(pieces):
            return []
        if (assigned := _ASSIGNMENT.fullmatch(statement)) is not None:
            self._assign(*assigned.groups())
        elif kind == "if":
            return self._branch(groups, statement)
        elif kind in ("function", "filter"):
            self._functions[pieces[2].lower()] = (
                f"{{{''.join(f'param{each}' for each in groups[:-1])}\n{groups[-1][1:]}"
            )
        elif kind == "param":
            self._changed(statement)
        elif kind:
            return [self._maybe(pieces, statement)]
        elif (left := _ENDING.match(statement)) is not None:
            self.run(statement[left.end() :])
            raise _Leaves
        elif re.match(r"-(?!not\b|join\b|split\b|[\d.($])", statement, re.IGNORECASE):
            for command in self.script.commands[-1:]:
                command.unread.append(f'"{statement[:60]}" below it, which is no part of it: no ` is at the end before')
        else:
            stages = ["".join(stage).strip() for stage in _split(pieces, re.compile(r"\||&&|\|\|"))]
            values = [self.value(text) if _EXPRESSION.match(text) else self._command(text) for text in stages]
            return values if len(stages) == 1 else [Unknown(statement, "is not followed", "--" in statement)]
        return []

    def _assign(self, kind: str, variable: str, sign: str, text: str) -> None:
        name, value = _key(variable), self.value(text)
        kind = self._types[name] = kind or self._types.get(name, "")
        self.variables[name] = _cast(kind, _sum(self.variables.get(name), value) if sign == "+=" else value)

    def _adds(self, pieces: list[str]) -> bool:
        """Add to a list if a statement says so; whether it does."""
        at = next((i for i, piece in enumerate(pieces) if piece[0] == "("), 0)
        found, rest = _ADDS.fullmatch("".join(pieces[:at])), "".join(pieces[at + 1 :])
        if found is None or not re.fullmatch(r"\s*(?:\|\s*Out-Null|>\s*\$null)?", rest, re.IGNORECASE):
            return False
        held, value = self.variables.get(_key(found[1])), self.value(pieces[at])
        is_one = found[2].lower() == "add"
        if isinstance(held, _Growing) and "," not in _pieces(pieces[at][1:-1]) and (is_one or isinstance(value, list)):
            grown = _Growing([*held, *([_item(value)] if is_one else value)])
            self.variables |= {name: grown for name, one in self.variables.items() if one is held}
        elif not isinstance(held, Unknown):  # an array, which refuses it
            self._forget([found[1]], "".join(pieces))
        return True

    def _branch(self, groups: list[str], statement: str) -> list[Any]:
        """Run the branch whose condition holds; if that is unknown, all that may be run."""
        possible = list[str]()
        for before, group in pairwise(["", *groups, "{}"]):
            held = _truth(self.value(before)) if before[:1] == "(" and group[0] == "{" else True
            if group[0] == "{" and held is not False:
                possible.append(group)
                if held:
                    break
        return self.run(possible[0][1:-1]) if len(possible) == 1 else [self._maybe(possible, statement)]

    def _maybe(self, pieces: list[str], statement: str) -> Unknown:
        """Run blocks that may be run or not, in any order: of what they set, nothing is known in them and afterwards."""
        why, folder = f"depends on {(statement.partition('{')[0].strip() or statement)[:60]!r}", self._folder
        for block in [*filter(None, map(_inside, pieces)), ""]:
            self._changed("".join(pieces), why)
            with suppress(_Leaves):
                self.run(block)
        if self._folder != folder:
            self.variables[_FOLDER] = Unknown("$PWD", why)
        return Unknown(statement, why, "--" in statement)

    def _changed(self, text: str, why: str = "") -> None:
        """Make unknown what a text sets; a call may change a list."""
        for found in _SETS.finditer(_QUOTED.sub("''", text)):
            names = _NAMED.findall(found[0])
            held = [each for each in names if isinstance(self._variable(each), list)]
            self._forget(held if found["call"] else names, text, why)

    def _forget(self, variables: Iterable[str], text: str, why: str = "") -> None:
        """Make variables unknown, with the other names of lists among them."""
        for variable in variables:
            held = self.variables.get(_key(variable))
            has_options = "--" in text or isinstance(held, list) or (isinstance(held, Unknown) and held.has_options)
            others = [name for name, one in self.variables.items() if isinstance(one, list) and one is held]
            unknown = Unknown(variable, why or f"is set by {text[:60]!r}", has_options)
            self.variables |= dict.fromkeys([_key(variable), *others], unknown)

    # Expressions.

    def value(self, text: str) -> Any:
        """Return the value of an expression, or what a statement puts out."""
        text = text.strip()
        if _LIST.fullmatch(text):
            return _Growing()
        if not _EXPRESSION.match(text):
            return _single(self.run(text))
        value = self._expression(_pieces(text))
        self._changed(text)
        return value

    def _expression(self, pieces: list[str]) -> Any:
        text = "".join(pieces).strip()
        pieces = [piece for piece in pieces if not piece.isspace()]
        for signs in (_LOGICAL, _COMPARED):  # a kind binds alike, from left to right
            if at := max((i for i, piece in enumerate(pieces) if signs.fullmatch(piece)), default=0):
                sign = signs.sub(r"\1", pieces[at]).lower()
                done = _compared(self._expression(pieces[:at]), sign, self._expression(pieces[at + 1 :]))
                return Unknown(text, "is not known") if done is None else done
        if any(_OPERATOR.fullmatch(piece) for piece in pieces[1:]):
            return self._unfollowed(text)
        if "+" in pieces:
            return reduce(_sum, map(self._expression, _split(pieces, re.compile(r"\+"))))
        if "," in pieces:
            items = [self._expression(item) for item in _split(pieces, re.compile(","))]
            is_plain = all(not isinstance(item, Unknown) or _NAMED.fullmatch(item.source) for item in items)
            return [*map(_item, items)] if is_plain else Unknown(text, "is not followed", "--" in text)
        if len(pieces) == 1:
            return self._term(text)
        if pieces and pieces[0].lower() in ("!", "-not"):
            held = _truth(self._expression(pieces[1:]))
            return Unknown(text, "is not known") if held is None else not held
        if len(pieces) == 2 and re.fullmatch(r"\[[\w.\[\]]+\]", pieces[0]):
            return _cast(pieces[0], self._expression(pieces[1:]))
        return self._unfollowed(text)

    def _unfollowed(self, text: str) -> Unknown:
        self._maybe(_pieces(text), text)
        return Unknown(text, "is not followed", "--" in text)

    def _term(self, text: str) -> Any:
        if _QUOTED.fullmatch(text):
            return self._quoted(text)
        if _NAMED.fullmatch(text):
            return self._variable(text)
        if re.fullmatch(r"-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", text, re.IGNORECASE):
            return int(text) if re.fullmatch(r"-?\d{1,9}", text) else float(text)
        inner = _inside(text)
        if inner is None or text[0] == "{":
            return self._unfollowed(text)
        if text[0] == "(":
            return self.value(inner) if len([*_statements(inner)]) == 1 else self._unfollowed(text)
        value = _flat(self.run(inner)) if text[0] == "@" else _single(self.run(inner))
        return value._replace(source=text) if isinstance(value, Unknown) else value

    def _variable(self, text: str) -> Any:
        value = (_CONSTANTS if _key(text) in _CONSTANTS else self.variables).get(_key(text), Unknown(text, _UNSET))
        return value._replace(source=text) if isinstance(value, Unknown) else value

    def _quoted(self, text: str) -> str:
        is_here = text[0] == "@"
        inner = text.partition("\n")[2][:-3] if is_here else text[1:-1]
        if text[is_here] in _S:
            return inner if is_here else re.sub(rf"([{_S}])[{_S}]", r"\1", inner)
        parts, end = list[Any](), 0
        for found in _IN_TEXT.finditer(inner):
            first, second = found[0][0], found[0][1]
            value = _ESCAPED.get(second, second) if first == "`" else found[0] if is_here else first
            parts += [inner[end : found.start()], self._term(found[0]) if first == "$" else value]
            end = found.end()
        return _text(*parts, inner[end:])

    # Commands.

    def _command(self, text: str) -> Unknown:
        """Add a command, which puts out what nobody knows."""
        command = Command()
        for word in _words(_pieces(text)):
            if command.words or command.unread or word not in (["&"], ["."]):
                value = self._word(word)
                for each in value if isinstance(value, list) else [value]:
                    command.add(each if isinstance(each, Unknown) else _text(each))
        name = command.words[0].lower() if command.words else ""
        if (body := self._functions.pop(name, None)) is not None:
            self._forget([each for each in _NAMED.findall(text) if isinstance(self._variable(each), list)], text)
            self._maybe([body], text)
            self._functions[name] = body
        elif re.fullmatch(r"(?:\w+-)?variable|[scnr]v|set-item|si", name):
            self._forget([f"${word}" for word in command.words if _key(f"${word}") in self.variables], text)
        elif _ENTERS.fullmatch(name):
            words = [word for word in command.words[1:] if not re.match(r"-\w", word)]
            self.variables[_FOLDER] = entered(self._folder, words, text)
        elif not _QUIET.fullmatch(name):
            command.words = [from_start(self._folder, word) for word in command.words]
            self.script.commands.append(command)
        return Unknown(text, "is what another command prints", "--" in text)

    def _word(self, pieces: list[str]) -> Any:
        """Return the value of a word of a command, in which text needs no quotes."""
        raw, first = "".join(pieces), pieces[0]
        if "," in pieces and ("" in raw.split(",") or _TERM.search(raw)):  # a list that is not one plain word
            return Unknown(raw, "is not followed", True)
        if len(pieces) == 1 and re.match(rf"\$.|[@({{{_D}{_S}]", raw):
            value = self._variable(raw) if re.match(r"@\w", raw) else self._term(raw)
            return Unknown(raw, "is $null") if value is None else value
        ends_early = _SPLITS.match(raw) or (_NAMED.fullmatch(first) and pieces[1][0] not in f"/\\-{_D}{_S}")
        if ends_early or any(re.match(r"@?[({#]", piece) for piece in pieces):
            return self._unfollowed(raw)
        return _text(*(self._term(each) if _TERM.fullmatch(each) else each.removeprefix("`") for each in pieces))


# Texts.


def _tokens(text: str) -> Iterator[str]:
    former = last = " "
    for found in _TOKEN.finditer(text):
        # In a word, # behind its quotes is part of it.
        if found["comment"] is None or (last[-1] in _D + _S and not former.isspace() and former[-1] == "=" != former):
            former, last = last, " " if found["mark"] else found[0]
            yield last


def _pieces(text: str) -> list[str]:
    """Return the tokens of a text, of which those in brackets are one with these."""
    pieces, opened, depth = list[str](), list[str](), 0
    for token in _tokens(text):
        depth += (token in _OPENS) - (token in (")", "}") and depth > 0)
        opened.append(token)
        if depth == 0:
            pieces.append("".join(opened))
            opened.clear()
    return pieces + opened


def _inside(piece: str) -> str | None:
    """Return what is run or calculated in brackets; None of what has none."""
    found = re.fullmatch(r"(?:[$@]?\(|\{)(.*)[)}]", piece, re.DOTALL)
    return None if found is None else found[1]


def _statements(text: str) -> Iterator[str]:
    """Yield statements: a line ends one, and so does the last block of one that consists of blocks."""
    parts, last = list[str](), ""
    for piece in [*_pieces(text), ";"]:
        ends = last[:1] == "{" and piece.strip() and piece[0] not in "{|" and not _CLAUSE.fullmatch(piece)
        if piece in ("\n", ";") or (ends and _KEYWORD.match("".join(parts).strip())):
            if said := "".join(parts).strip():
                yield said
            parts = []
        parts += [piece] if piece not in ("\n", ";") else []
        last = piece if piece.strip() else last


def _split(pieces: list[str], sign: re.Pattern[str]) -> Iterator[list[str]]:
    part = list[str]()
    for piece in pieces:
        if sign.fullmatch(piece):
            yield part
            part = []
        else:
            part.append(piece)
    yield part


def _words(pieces: list[str]) -> Iterator[list[str]]:
    """Yield the words of a command, each as its pieces, without those that say where its output goes."""
    is_target = False
    for word in _split(pieces, re.compile(r"\s+")):
        at = next((i for i, piece in enumerate(word) if re.match(r"[\d*]?>", piece)), len(word))
        if word[:at] and not is_target:
            yield word[:at]
        is_target = (at == len(word) - 1 and "&" not in word[at]) or (is_target and not word)


def _key(variable: str) -> str:
    return re.sub(r"^(?:script|global|local|private|variable):", "", variable.strip("$@{}").lower())


# Values.


def _text(*values: Any, between: str = "") -> str:
    """Return values as one text, which is partly unknown if one of them is."""
    texts = [_text(*value, between=" ") if isinstance(value, list) else _as_text(value) for value in values]
    text, unknown = between.join(texts), unknown_in(texts)
    return text if unknown is None else Partly(text, unknown._replace(is_several=text.startswith(unknown.source)))


def _as_text(value: Any) -> str:
    if isinstance(value, Unknown):  # one word, which has no options in it
        return Partly(value.source, value._replace(has_options=False))
    if isinstance(value, float):
        return str(value).upper().removesuffix(".0")
    if value is None:
        return ""
    return value if isinstance(value, str) else str(value)


def _item(value: Any) -> Any:
    return _text(value) if isinstance(value, Unknown) else value


def _flat(values: list[Any]) -> Any:
    unknown = next((value for value in values if isinstance(value, Unknown)), None)
    return unknown or [each for value in values for each in (value if isinstance(value, list) else [value])]


def _single(values: list[Any]) -> Any:
    found = _flat(values)
    return found if isinstance(found, Unknown) or len(found) > 1 else next(iter(found), None)


def _sum(a: Any, b: Any) -> Any:
    if a is None or isinstance(a, Unknown):
        return b if a is None else a
    if isinstance(a, str):
        return _text(a, b)
    if isinstance(b, Unknown):
        return b
    if isinstance(a, list):
        return [*a, *(b if isinstance(b, list) else [b])]
    is_known = type(a) is type(b) is int and abs(a + b) < 2**31
    return a + b if is_known else Unknown(f"{_text(a)} + {_text(b)}", "is not calculated")


def _cast(kind: str, value: Any) -> Any:
    """Return a value as a type that may stand before it."""
    name = kind[1:-1].lower().removeprefix("system.")
    if not kind or isinstance(value, Unknown):
        return value
    if name.endswith("arraylist") and isinstance(value, list):
        return _Growing(value)
    types = {"string": str, "int": int, "double": float, "bool": bool, "array": list, "object[]": list}
    return value if isinstance(value, types.get(name, ())) else Unknown(kind, "is a conversion that is not followed")


def _truth(value: Any) -> bool | None:
    """Return whether a value is true; None if that is unknown."""
    if isinstance(value, Unknown | Partly):
        return None
    return _truth(value[0]) if isinstance(value, list) and len(value) == 1 else bool(value)


def _compared(a: Any, sign: str, b: Any) -> bool | None:
    """Return whether a comparison holds, for which the right side becomes of the type of the left one; None if unknown."""
    if sign in ("and", "or"):
        return decided([_truth(a), _truth(b)], by=sign == "or")
    if any(isinstance(each, Unknown | Partly | list) for each in (a, b)):
        return None
    if a is None or b is None:
        return {"eq": a is b, "ne": a is not b}.get(sign)
    if isinstance(a, str) or "like" in sign:
        a, b = _text(a).lower(), _text(b).lower()
    if "like" in sign:
        return None if re.search(r"[\[`]", b) else fnmatch.fnmatchcase(a, b) == (sign == "like")
    if isinstance(a, str) and sign not in ("eq", "ne") and not re.fullmatch(r"[0-9a-z.]*", a + b):
        return None  # the order of other letters is that of a language
    try:
        if not isinstance(a, str):
            b = bool(b) if isinstance(a, bool) else float(b or 0)
    except ValueError:
        return {"eq": False, "ne": True}.get(sign)
    return bool(getattr(operator, sign)(a, b))
