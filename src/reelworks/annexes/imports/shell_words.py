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

from reelworks.annexes.imports.script import Partly, Script, Unknown, Value, decided, joined, unknown_in

_COMPARED = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")
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
FOLDER = "PWD"  # the variable of the folder that commands run in
_UNSET = "the script does not set"
NO_ARGUMENTS = "stands for arguments that the script is called with; none are given here"


class _WordPart(NamedTuple):
    """A part of a word: texts, of which several are words of their own."""

    texts: list[str]
    is_quoted: bool = True


def _expanded(value: Value) -> _WordPart:
    """Return the part that the value of a variable is."""
    return _WordPart(value if isinstance(value, list) else [joined([value])], False)


def _unknown(source: str, why: str) -> _WordPart:
    return _expanded(Unknown(source, why))


def _split(text: str) -> list[str]:
    """Return the words of a text; blanks in the source of what is unknown are none of its own."""
    unknown = unknown_in(text)
    source = "" if unknown is None else unknown.source
    return [word.replace("\0", source) for word in text.replace(source or "\0", "\0").split()]


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
            sign, operand = text_of(node.children[0]), node.named_children[-1]
            if sign == "!":
                held = self._holds(operand)
                return None if held is None else not held
            return self.tested([sign, self._text(operand)])
        if node.type == "binary_expression":
            sign = text_of(node.child_by_field_name("operator"))
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if sign in ("&&", "||"):
                return decided([self._holds(left), self._holds(right)], by=sign == "||")
            if sign in ("=", "==", "!=") and text_of(node.parent).startswith("[["):
                text, pattern = self._text(left), self.pattern(right)
                return None if unknown_in(text, pattern) else fnmatch.fnmatchcase(text, pattern) == (sign != "!=")
            return self.tested([self._text(left), sign, self._text(right)])
        return self.tested([self._text(node)])

    def _text(self, node: Any) -> str:
        """Return what a node expands to, without being split to words."""
        return joined(joined(part.texts, " ") for part in self._parts(node))

    def pattern(self, node: Any) -> str:
        """Return the pattern that a node expands to, in which quoted text stands for itself."""
        if re.search(r"[?*+@!]\(|\\", text_of(node)):
            return joined([Unknown(text_of(node), "is not followed")])
        nodes = node.children if node.type == "concatenation" else [node]
        texts = [self._text(each) for each in nodes]
        pairs = zip(nodes, texts, strict=True)
        return joined(
            glob.escape(text) if each.type.endswith("string") and not isinstance(text, Partly) else text
            for each, text in pairs
        )

    def forget(self, text: str, names: Iterable[str] | None = None) -> None:
        """Make variables unknown that a text names, or those that it calculates."""
        found = [each for groups in _CALCULATES.findall(text) for each in groups] if names is None else names
        for name in (re.match(r"\w*", each) for each in found):
            if name is not None and name[0] and not name[0].isdigit():
                self.script.variables[name[0]] = Unknown(f"${name[0]}", f"is set by {text[:60]!r}", "--" in text)

    def tested(self, words: list[str]) -> bool | None:
        """Return whether the words of a test hold."""
        if unknown_in(words) is not None:
            return None
        match words:
            case []:
                return False
            case [word] | ["-n", word]:
                return bool(word)
            case ["-z", word]:
                return not word
            case ["!", *rest]:
                held = self.tested(rest)
                return None if held is None else not held
            case [a, "=" | "==" | "!=" as sign, b]:
                return (a == b) == (sign != "!=")
            case [a, sign, b] if sign in _COMPARED:
                numbers = [each.strip() or "0" for each in (a, b)]
                if all(re.fullmatch(r"[-+]?\d+", each) for each in numbers):
                    return bool(getattr(operator, sign[1:])(*map(int, numbers)))
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
            unknown = unknown_in(fields)
            return unknown if unknown is not None and unknown.is_several else fields
        text = self._text(node)
        unknown = unknown_in(text)
        return unknown if unknown is not None and text == unknown.source else text

    def words_of(self, command: Any) -> list[str]:
        """Return the words that a command consists of."""
        named = enumerate(command.children)
        parts = [child for i, child in named if command.field_name_for_child(i) in ("name", "argument")]
        parts = [child.named_children[0] if child.type == "command_name" else child for child in parts]
        return [each for part in parts for each in self.fields(part)]

    def fields(self, node: Any) -> list[str]:
        """Return the words that a node expands to."""
        done, word = list[str](), list[str]()
        for part in self._parts(node):
            if not part.is_quoted and "IFS" in self.script.variables:
                part = _expanded(Unknown(text_of(node), "is split by IFS", True))
            starts_apart = not part.is_quoted and part.texts[:1] and part.texts[0][:1].isspace()
            pieces = [(piece, text) for text in part.texts for piece in ([text] if part.is_quoted else _split(text))]
            for number, (piece, text) in enumerate(pieces):
                if word and (number or starts_apart):
                    done.append(joined(word))
                    word = []
                if (unknown := unknown_in(text)) is not None:
                    is_several = unknown.is_several or not part.is_quoted or "[@]" in unknown.source
                    piece = Partly(piece, unknown._replace(is_several=is_several))
                word.append(piece)
        return [*done, joined(word)] if word else done

    def _parts(self, node: Any) -> Iterator[_WordPart]:
        kind, text = node.type, text_of(node)
        if kind == "concatenation":
            if re.search(r"(?<!\$)\{[^}]*(,|\.\.)[^}]*\}", text) and all(c.type == "word" for c in node.children):
                yield _unknown(text, "is not expanded")
                return
            for child in node.children:
                yield from self._parts(child)
        elif kind == "string":
            inside = [*self._inside(node, node.start_byte + 1, node.end_byte - 1)]
            if len(inside) != 1 or inside[0].texts:  # "$@" without arguments is no word
                yield _WordPart([""])
            yield from inside
        elif kind == "translated_string":
            yield from self._parts(node.named_children[-1])
        elif kind == "raw_string":
            yield _WordPart([text[1:-1]])
        elif kind == "ansi_c_string":
            known = re.sub(r"\\([nt'\\])", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text[2:-1])
            is_known = re.search(r"(?<!\\)(?:\\\\)*\\[^nt'\\]", text) is None
            yield _WordPart([known]) if is_known else _unknown(text, "is not followed")
        elif kind in ("simple_expansion", "expansion"):
            yield self._expansion(node)
        elif kind == "arithmetic_expansion":
            yield self._arithmetic(text)
        elif kind == "command_substitution":
            yield self._substituted(node)
        elif kind in ("process_substitution", "brace_expression", "ERROR"):
            yield _unknown(text, "is not followed")
        else:
            yield _WordPart([re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))])

    def _inside(self, node: Any, start: int, end: int) -> Iterator[_WordPart]:
        """Yield the parts of a quoted text; what is between its nodes belongs to it."""
        source, first, place = node.text, node.start_byte, start
        for child in node.children:
            if child.type in ('"', "heredoc_content", "string_content"):
                continue
            if child.start_byte > place:
                yield _literal(source[place - first : child.start_byte - first])
            if blank := text_of(child)[: -len(text_of(child).lstrip())]:  # which its node begins with
                yield _WordPart([blank])
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
        return joined(joined(part.texts, " ") for part in self._inside(body, body.start_byte, body.end_byte))

    def _expansion(self, node: Any) -> _WordPart:
        text = text_of(node)
        inner = [child for child in node.children if child.type not in ("${", "$", "}")]
        signs = [text_of(child) for child in inner if not child.is_named]
        name = next(
            (child for child in inner if child.type in ("variable_name", "special_variable_name", "subscript")), None
        )
        if name is None or signs[:1] == ["!"]:
            return _unknown(text, "is not followed")
        value = self._named(name, text)
        if signs[:1] == ["#"] and inner[0] is not name:
            value = unknown_in(value) or str(len(value))
        elif signs:
            value = self._operated(signs[0], name, value, text)
        return _expanded(value._replace(source=text) if isinstance(value, Unknown) else value)

    def _named(self, node: Any, source: str) -> Value:
        """Return the value of a variable, with its index."""
        if node.type == "subscript":
            index = text_of(node.child_by_field_name("index"))
            listed = self.script.variables.get(text_of(node.child_by_field_name("name")), Unknown(source, _UNSET))
            if isinstance(listed, Unknown):
                return listed
            items = [listed] if isinstance(listed, str) else listed
            if index in ("@", "*"):
                return joined(items, " ") if index == "*" and self.is_quoted else items
            if not re.fullmatch(r"-?\d+", index):
                return Unknown(source, "has an index that is not followed")
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
            if self.arguments is None:
                return Unknown(source, "is an argument that the script is called with")
            return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else ""
        value = self.script.variables.get(name, Unknown(source, _UNSET))
        return next(iter(value), "") if isinstance(value, list) else value

    def _operated(self, sign: str, name: Any, value: Value, source: str) -> Value:
        """Apply what stands behind the name of a variable."""

        def other() -> Value:
            """Return what stands there: words of their own, unless all is in quotes."""
            if self.is_quoted and '"' in source:
                return Unknown(source, "is not followed")
            written = source[source.index(sign, 2 + len(text_of(name))) + len(sign) : -1]
            form = f'x="{written}"' if self.is_quoted else f"x=({written})"
            found = self.value(parse(form).named_children[0].child_by_field_name("value"))
            return found[0] if isinstance(found, list) and len(found) == 1 else found

        is_unset = isinstance(value, Unknown) and (value.why == _UNSET or "called with" in value.why)
        is_lacking = is_unset or (sign[0] == ":" and not value)
        if sign in (":-", "-", ":=", "="):
            value = other() if is_lacking else value
            if is_lacking and sign[-1] == "=":
                self.script.variables[text_of(name)] = value
            return value
        if sign in (":+", "+") and is_lacking:
            return ""
        if sign in (":+", "+"):
            return value if isinstance(value, Unknown) else other()
        if sign in (":?", "?") or isinstance(value, Unknown):
            return value
        is_plain = type(value) is str and not re.search(r"[?*+@!]\(", source)
        if sign in ("%", "%%", "#", "##") and is_plain and type(pattern := other()) is str:
            return _cut(str(value), pattern, sign)
        return Unknown(source, "is not followed")

    def _arithmetic(self, text: str) -> _WordPart:
        names = re.sub(r"\$\{?(\w+)\}?", r"\1", text[3:-2])
        known = re.sub(r"[A-Za-z_]\w*", lambda found: str(self.script.variables.get(found[0], "?")) or "0", names)
        try:
            if _CALCULATES.search(text):
                self.forget(text)
                raise ValueError(text)
            return _expanded(str(_calculated(ast.parse(known.strip(), mode="eval").body)))
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError):
            return _unknown(text, "is not known")

    def _substituted(self, node: Any) -> _WordPart:
        """Return what a command prints, of the few that print what the script says."""
        body = node.named_children[0] if len(node.named_children) == 1 else node
        if body.type == "redirected_statement" and text_of(body.child_by_field_name("body")) == "cat":
            for heredoc in (child for child in body.children if child.type == "heredoc_redirect"):
                return _expanded(self.heredoc(heredoc).rstrip("\n"))
        words = self.words_of(body) if body.type == "command" else []
        if words[:1] == ["echo"] and unknown_in(words) is None:
            return _expanded(" ".join(words[1:]))
        if words[:1] == ["pwd"]:
            return _expanded(self.script.variables.get(FOLDER, "."))
        return (
            _expanded(".") if words == ["dirname", "."] else _unknown(text_of(node), "is what another command prints")
        )


def text_of(node: Any) -> str:
    """Return the source of a node."""
    text: str = node.text.decode(errors="replace")
    return text


def _literal(text: bytes) -> _WordPart:
    found = re.sub(r'\\([\\"$`\n])', lambda found: found[1].strip("\n"), text.decode(errors="replace"))
    return _WordPart([found])


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
