"""Expand the words of a script for sh or bash, and decide its conditions, by what its variables are known to be."""

from __future__ import annotations

import ast
import fnmatch
import glob
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from reelworks.annexes.imports.script import Partly, Script, Unknown, Value

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_CALCULATED: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_CALCULATES = re.compile(
    r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)([A-Za-z_]\w*)"
)
_UNSET = "the script does not set"
NO_ARGUMENTS = "stands for arguments that the script is called with; none are given here"


class _WordPart(NamedTuple):
    """A part of a word: texts, of which several are words of their own, and what in them is unknown."""

    texts: list[str]
    is_quoted: bool
    unknown: Unknown | None = None

    @classmethod
    def of_value(cls, value: Value) -> _WordPart:
        """Return the part that the value of a variable is."""
        if isinstance(value, Unknown):
            return cls([value.source], False, value)
        texts = [value] if isinstance(value, str) else value
        return cls(texts, False, next((each.unknown for each in texts if isinstance(each, Partly)), None))


class Field(NamedTuple):
    """A word after all expansions."""

    text: str
    unknown: Unknown | None
    may_be_several: bool


@cache
def _parser() -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str) -> Any:
    """Return the node that a script is."""
    return _parser().parse(text.encode()).root_node


class Words:
    """The words that nodes of a script expand to.

    Attributes:
        script: What the script did so far.
        arguments: Those of the function that runs; None in the script itself.
        has_arguments: Whether a word stands for arguments of the script, of which none are given here.
    """

    def __init__(self) -> None:
        self.script = Script()
        self.arguments: list[str] | None = None
        self.has_arguments = False
        self.is_quoted = False  # whether what is expanded stands in double quotes

    # Conditions.

    def _test_command(self, node: Any) -> bool | None:
        inner = node.named_children
        return self._holds(inner[0]) if inner else False

    def _holds(self, node: Any) -> bool | None:
        if node.type == "parenthesized_expression":
            return self._holds(node.named_children[0])
        if node.type == "unary_expression":
            sign = node.children[0].type if node.children[0].type == "!" else text_of(node.children[0])
            if sign == "!":
                held = self._holds(node.named_children[-1])
                return None if held is None else not held
            return self._tested_fields([sign], node.named_children[-1:])
        if node.type == "binary_expression":
            sign = text_of(node.child_by_field_name("operator"))
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if sign in ("&&", "||"):
                sides = [self._holds(left), self._holds(right)]
                decided = sign == "||"
                return decided if decided in sides else None if None in sides else not decided
            if sign not in ("=", "==", "!="):
                return self._tested_fields([sign], [left, right])
            texts = self._texts([left, right])
            pattern = self.pattern(right) if text_of(node.parent).startswith("[[") else glob.escape((texts or [""])[-1])
            return None if texts is None or pattern is None else self.tested([texts[0], sign, pattern], False)
        return self._tested_fields([], [node])

    def _tested_fields(self, sign: list[str], nodes: list[Any]) -> bool | None:
        words = self._texts(nodes)
        return (
            None
            if words is None
            else self.tested([words[0], *sign, *words[1:]] if words[1:] else [*sign, *words], False)
        )

    def _texts(self, nodes: list[Any]) -> list[str] | None:
        """Return what nodes expand to, without being split to words; None if that is unknown."""
        parts = [[*self._parts(node)] if node is not None else [] for node in nodes]
        if any(part.unknown is not None for each in parts for part in each):
            return None
        return ["".join(" ".join(part.texts) for part in each) for each in parts]

    def pattern(self, node: Any) -> str | None:
        """Return the pattern that a node expands to, in which quoted text stands for itself; None if that is unknown."""
        nodes = node.children if node.type == "concatenation" else [node]
        texts = self._texts(nodes)
        if texts is None or re.search(r"[?*+@!]\(|\\", text_of(node)):
            return None
        are_quoted = (each.type.endswith("string") for each in nodes)
        return "".join(glob.escape(text) if quoted else text for text, quoted in zip(texts, are_quoted, strict=True))

    def forget(self, text: str, names: Iterable[str] | None = None) -> None:
        """Make variables unknown that a text names, or those that it calculates."""
        found = [each for groups in _CALCULATES.findall(text) for each in groups] if names is None else names
        for name in (re.match(r"\w*", each) for each in found):
            if name is not None and name[0] and not name[0].isdigit():
                self.script.variables[name[0]] = Unknown(f"${name[0]}", f"is set by {text[:60]!r}", "--" in text)

    def tested(self, words: list[str], is_unknown: bool) -> bool | None:
        """Return whether the words of a test hold."""
        if is_unknown:
            return None
        match words:
            case []:
                return False
            case [word]:
                return bool(word)
            case ["-n", word]:
                return bool(word)
            case ["-z", word]:
                return not word
            case ["!", *rest]:
                held = self.tested(rest, False)
                return None if held is None else not held
            case [a, "=" | "==", b]:
                return fnmatch.fnmatchcase(a, b)
            case [a, "!=", b]:
                return not fnmatch.fnmatchcase(a, b)
            case [a, sign, b] if sign in _COMPARED:
                numbers = [
                    int(each) if re.fullmatch(r"[-+]?\d+", each.strip() or "0") else None
                    for each in (a or "0", b or "0")
                ]
                return None if None in numbers else _COMPARED[sign](*numbers)
        return None

    # Words.

    def value(self, node: Any) -> Value:
        """Return what an assignment of a word or an array sets a variable to."""
        if node is None:
            return ""
        if node.type == "array" and any(text_of(child).startswith("[") for child in node.named_children):
            return Unknown(text_of(node), "is a table")
        if node.type == "array":
            fields = [each for child in node.named_children if child.type != "comment" for each in self.fields(child)]
            unknown = next((each.unknown for each in fields if each.unknown is not None and each.may_be_several), None)
            return unknown or [Partly(each.text, each.unknown) if each.unknown else each.text for each in fields]
        parts = [*self._parts(node)]
        unknown = next((part.unknown for part in parts if part.unknown is not None), None)
        text = "".join(" ".join(part.texts) for part in parts)
        if unknown is None:
            return text
        return unknown if text == unknown.source else Partly(text, unknown)

    def fields(self, node: Any) -> list[Field]:
        """Return the words that a node expands to."""
        done: list[Field] = []
        text: str | None = None
        unknown, several = None, False
        for part in self._parts(node):
            if not part.is_quoted and "IFS" in self.script.variables:
                part = _WordPart.of_value(Unknown(text_of(node), "is split by IFS", True))
            pieces = part.texts if part.is_quoted else [piece for one in part.texts for piece in one.split()]
            starts_apart = not part.is_quoted and bool(part.texts) and part.texts[0][:1].isspace()
            for number, piece in enumerate(pieces):
                if text is not None and (number or starts_apart):
                    done.append(Field(text, unknown, several))
                    text, unknown, several = None, None, False
                text = (text or "") + piece
                if part.unknown is not None:
                    unknown, several = part.unknown, several or not part.is_quoted or "[@]" in part.unknown.source
        return [*done, *([] if text is None else [Field(text, unknown, several)])]

    def _parts(self, node: Any) -> Iterator[_WordPart]:
        kind, text = node.type, text_of(node)
        if kind == "concatenation":
            if re.search(r"(?<!\$)\{[^}]*(,|\.\.)[^}]*\}", text) and all(c.type == "word" for c in node.children):
                yield _WordPart.of_value(Unknown(text, "is not expanded"))
                return
            for child in node.children:
                yield from self._parts(child)
        elif kind == "string":
            inside = [*self._inside(node, node.start_byte + 1, node.end_byte - 1)]
            if len(inside) != 1 or inside[0].texts:  # "$@" without arguments is no word
                yield _WordPart([""], True)
            yield from inside
        elif kind == "translated_string":
            yield from self._parts(node.named_children[-1])
        elif kind == "raw_string":
            yield _WordPart([text[1:-1]], True)
        elif kind == "ansi_c_string":
            known = re.sub(r"\\([nt'\\])", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text[2:-1])
            is_known = re.search(r"(?<!\\)(?:\\\\)*\\[^nt'\\]", text) is None
            yield _WordPart([known], True) if is_known else _WordPart.of_value(Unknown(text, "is not followed"))
        elif kind in ("simple_expansion", "expansion"):
            yield self._expansion(node)
        elif kind == "arithmetic_expansion":
            yield self._arithmetic(text)
        elif kind == "command_substitution":
            yield self._substituted(node)
        elif kind in ("process_substitution", "brace_expression", "ERROR"):
            yield _WordPart.of_value(Unknown(text, "is not followed"))
        else:
            yield _WordPart([re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))], True)

    def _inside(self, node: Any, start: int, end: int) -> Iterator[_WordPart]:
        """Yield the parts of a quoted text; what is between its nodes belongs to it."""
        source, first, place = node.text, node.start_byte, start
        for child in node.children:
            if child.type in ('"', "heredoc_content", "string_content"):
                continue
            if child.start_byte > place:
                yield _literal(source[place - first : child.start_byte - first])
            if blank := text_of(child)[: -len(text_of(child).lstrip())]:  # which its node begins with
                yield _WordPart([blank], True)
            former, self.is_quoted = self.is_quoted, True
            yield from [part._replace(is_quoted=True) for part in self._parts(child)]
            self.is_quoted, place = former, child.end_byte
        if end > place:
            yield _literal(source[place - first : end - first])

    def heredoc(self, node: Any) -> str:
        """Return the text of a file that stands in the script."""
        start = next(text_of(child) for child in node.children if child.type == "heredoc_start")
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if body is None:
            return ""
        if not start.isidentifier():  # in quotes: as it stands
            return text_of(body)
        return "".join(" ".join(part.texts) for part in self._inside(body, body.start_byte, body.end_byte))

    def _expansion(self, node: Any) -> _WordPart:
        text = text_of(node)
        inner = [child for child in node.children if child.type not in ("${", "$", "}")]
        signs = [text_of(child) for child in inner if not child.is_named]
        name = next(
            (child for child in inner if child.type in ("variable_name", "special_variable_name", "subscript")), None
        )
        if name is None or signs[:1] == ["!"]:
            return _WordPart.of_value(Unknown(text, "is not followed"))
        value = self._named(name, text)
        if signs[:1] == ["#"] and inner[0] is not name:
            return _WordPart.of_value(value if isinstance(value, Unknown) else str(len(value)))
        if signs:
            value = self._operated(signs[0], name, value, text)
        return _WordPart.of_value(value._replace(source=text) if isinstance(value, Unknown) else value)

    def _named(self, node: Any, source: str) -> Value:
        """Return the value of a variable, with its index."""
        if node.type == "subscript":
            value = self._named(node.child_by_field_name("name"), source)
            index = text_of(node.child_by_field_name("index"))
            listed = self.script.variables.get(text_of(node.child_by_field_name("name")), value)
            if isinstance(listed, Unknown) or index in ("@", "*"):
                found = listed if isinstance(listed, Unknown | list) else [listed]
                return " ".join(found) if index == "*" and self.is_quoted and isinstance(found, list) else found
            if not re.fullmatch(r"-?\d+", index):
                return Unknown(source, "has an index that is not followed")
            items = [listed] if isinstance(listed, str) else listed
            return items[int(index)] if -len(items) <= int(index) < len(items) else ""
        name = text_of(node)
        if name in ("@", "*"):
            self.has_arguments |= self.arguments is None
            return self.arguments or []
        if name == "#":
            return str(len(self.arguments or []))
        if name == "0":
            return "."
        if name.isdigit():
            arguments = self.arguments
            if arguments is None:
                return Unknown(source, "is an argument that the script is called with")
            return arguments[int(name) - 1] if int(name) <= len(arguments) else ""
        value = self.script.variables.get(name, Unknown(source, _UNSET))
        if isinstance(value, Unknown):
            return value._replace(source=source)
        return next(iter(value), "") if isinstance(value, list) else value

    def _operated(self, sign: str, name: Any, value: Value, source: str) -> Value:
        """Apply what stands behind the name of a variable."""

        def other() -> Value:
            """Return what stands there: words of their own, unless all is in quotes."""
            if self.is_quoted and '"' in source:
                return Unknown(source, "is not followed")
            written = source[source.index(sign, 2 + len(text_of(name))) + len(sign) : -1]
            form = f'x="{written}"' if self.is_quoted else f"x=({written})"
            node = parse(form).named_children[0].child_by_field_name("value")
            found = self.value(node)
            return found[0] if isinstance(found, list) and len(found) == 1 else found

        is_unset = isinstance(value, Unknown) and (value.why == _UNSET or "called with" in value.why)
        if sign in (":-", "-", ":=", "="):
            if is_unset or (sign[0] == ":" and not value):
                value = other()
                if sign[-1] == "=":
                    self.script.variables[text_of(name)] = value
            return value
        if sign in (":+", "+"):
            return (
                "" if is_unset or (sign[0] == ":" and not value) else value if isinstance(value, Unknown) else other()
            )
        if sign in (":?", "?") or isinstance(value, Unknown):
            return value
        is_plain = isinstance(value, str) and not re.search(r"[?*+@!]\(", source)
        if sign in ("%", "%%", "#", "##") and is_plain and isinstance(pattern := other(), str):
            return _cut(str(value), pattern, sign)
        return Unknown(source, "is not followed")

    def _arithmetic(self, text: str) -> _WordPart:
        names = re.sub(r"\$\{?(\w+)\}?", r"\1", text[3:-2])
        known = re.sub(r"[A-Za-z_]\w*", lambda found: str(self.script.variables.get(found[0], "?")) or "0", names)
        try:
            if _CALCULATES.search(text):
                self.forget(text)
                raise ValueError(text)
            return _WordPart([str(_calculated(ast.parse(known.strip(), mode="eval").body))], False)
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError):
            return _WordPart.of_value(Unknown(text, "is not known"))

    def _substituted(self, node: Any) -> _WordPart:
        """Return what a command prints, of the few that print what the script says."""
        text, body = text_of(node), node.named_children
        unknown = _WordPart.of_value(Unknown(text, "is what another command prints"))
        if len(body) != 1:
            return unknown
        if body[0].type == "redirected_statement":
            heredoc = next((c for c in body[0].children if c.type == "heredoc_redirect"), None)
            is_cat = text_of(body[0].child_by_field_name("body")) == "cat"
            return _WordPart([self.heredoc(heredoc).rstrip("\n")], False) if heredoc is not None and is_cat else unknown
        if body[0].type != "command":
            return unknown
        fields = [
            each
            for child in body[0].named_children
            for each in self.fields(child.named_children[0] if child.type == "command_name" else child)
        ]
        words = [each.text for each in fields]
        if words[:1] == ["pwd"] or (words[:1] == ["dirname"] and words[1:] == ["."]):
            return _WordPart(["."], False)
        if words[:1] == ["echo"] and not any(each.unknown for each in fields):
            return _WordPart([" ".join(words[1:])], False)
        return unknown


def text_of(node: Any) -> str:
    """Return the source of a node."""
    text: str = node.text.decode(errors="replace")
    return text


def _literal(text: bytes) -> _WordPart:
    return _WordPart(
        [re.sub(r'\\([\\"$`\n])', lambda found: "" if found[1] == "\n" else found[1], text.decode(errors="replace"))],
        True,
    )


def _cut(text: str, pattern: str, sign: str) -> str:
    """Return a text without the shortest or longest start or end that fits a pattern."""
    fits = [i for i in range(len(text) + 1) if fnmatch.fnmatchcase(text[i:] if sign[0] == "%" else text[:i], pattern)]
    if not fits:
        return text
    at = (max if (sign in ("%", "##")) else min)(fits)
    return text[:at] if sign[0] == "%" else text[at:]


def _calculated(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_calculated(operand)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _calculated(left), _calculated(right)
            if isinstance(op, ast.Pow) and abs(b) > 64:
                raise ValueError(b)
            return _CALCULATED[type(op)](a, b)
    raise ValueError(ast.dump(node))
