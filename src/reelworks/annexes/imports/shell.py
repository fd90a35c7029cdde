"""Read the commands of a script for sh or bash without running it.

Followed are assignments, arrays, functions, `eval`, files that are written from the script itself, conditions and loops over what
the script sets, and the usual expansions. Whatever else a command consists of is told as `unread`, and what is set only under a
condition that nobody knows here is unknown from there on. Commands are taken to succeed, and the script to be called without
arguments.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any

from reelworks.annexes.imports.script import Command, Script, Unknown, Value, entered, from_start, joined, unknown_in
from reelworks.annexes.imports.shell_words import FOLDER, NO_ARGUMENTS, Words, parse, text_of

_MOST_STEPS = 20_000  # nodes that are followed, so that loops of loops end
_SETS = frozenset({"let", "read", "readarray", "mapfile", "getopts", "printf"})  # variables by their names
_HERE_STRING = re.compile(r"""(>>?[ \t]*[^\s<>|;&"']+)[ \t]+(<<<[ \t]*(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s<>|;&"']+))""")
_PRINTS = frozenset({"echo", "cat", "true", ":"})


def follow(text: str, beside: Callable[[str], str | None] = lambda _: None, *, is_script: bool = True) -> Script:
    """Follow a script, or the commands in another text; `beside` returns the text of a file that it sources, or None."""
    runner = _Runner(beside)
    with suppress(_Exit, RecursionError):  # as of a function that calls itself
        runner.run_text(_tidied(text))
    runner.script.variables.pop(FOLDER, None)
    if is_script and (error := _first_error(parse(_tidied(text)))) is not None:
        for command in runner.script.commands:  # of any, words may be missing
            command.unread.append(
                f"line {error.start_point[0] + 1} in its script, {text_of(error).strip()[:60]!r}, which is not understood"
            )
    return runner.script


def _first_error(node: Any) -> Any:
    if node.type == "ERROR" or node.is_missing:
        return node
    return next((_first_error(child) for child in node.children if child.has_error), None)


def _tidied(text: str) -> str:
    """Return a script as it was meant: blanks after a mark of continuation are easily there.

    A text that a file is made of stands before the file's name, which the parser needs.
    """
    text = re.sub(r"\\[ \t]+\n", "\\\n", text.replace("\r\n", "\n"))
    return _HERE_STRING.sub(r"\2 \1", text)


class _Exit(Exception):  # noqa: N818
    """The script, a function or a turn of a loop ends, as the word says that it has."""


class _Runner(Words):
    def __init__(self, beside: Callable[[str], str | None]) -> None:
        super().__init__()
        self._beside = beside
        self._functions: dict[str, Any] = {}
        self._steps = 0
        self._special: set[str] = set()
        self._own: dict[str, Value | None] | None = None  # what is set again when the function that runs ends

    def _sourced(self, name: str) -> str | None:
        return self.script.files.get(name, self._beside(name))

    @property
    def _folder(self) -> Value:
        return self.script.variables.get(FOLDER, ".")

    # Statements return whether they succeed, None if that is unknown.

    def run_text(self, text: str) -> bool | None:
        try:
            return self._run(parse(text))
        except _Exit as end:
            if end.args != ("exit",):
                return None
            raise

    def _run(self, node: Any) -> bool | None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _Exit("exit")
        run = getattr(self, f"_{node.type}", None)
        if run is not None:
            done: bool | None = run(node)
            return done
        return self._all(node.named_children)

    def _all(self, nodes: Iterable[Any]) -> bool | None:
        status: bool | None = True
        for node in nodes:
            follows = node.next_sibling
            is_apart = follows is not None and follows.type == "&"  # runs beside the script, whose variables stay
            run = partial(self._run, node)
            status = self._apart(run) if is_apart else run()
        return status

    def _variable_assignment(self, node: Any) -> bool:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        appends = any(child.type == "+=" for child in node.children)
        if name.type != "variable_name":  # one element of an array
            self.script.variables[text_of(name.child_by_field_name("name"))] = Unknown(
                text_of(node), "is set by an element"
            )
            return True
        if re.search(rf"\$(?:{text_of(name)}\b|\{{{text_of(name)}\}})", text_of(node)):
            self.script.variables.setdefault(text_of(name), "")  # X="$X --more", of which nothing was set before
        self._assign(text_of(name), self.value(value), appends=appends)
        if text_of(name) in self._special:
            self.forget(text_of(node), [text_of(name)])
        return True

    def _assign(self, name: str, value: Value, *, appends: bool) -> None:
        """Set a variable, or append to it; what is unknown of either stays so."""
        former = self.script.variables.get(name, "") if appends else ""
        if isinstance(former, Unknown):
            value = former
        elif isinstance(value, list):
            value = [*([former] if isinstance(former, str) and former else former), *value]
        elif isinstance(value, str):
            text = joined([*former[:1], value]) if isinstance(former, list) else joined([former, value])
            value = [text, *former[1:]] if isinstance(former, list) else text
        self.script.variables[name] = value

    def _unset_command(self, node: Any) -> bool:
        for name in (text_of(child).strip("'\"") for child in node.named_children):
            if "[" in name:
                self.forget(text_of(node), [name.partition("[")[0]])
            self.script.variables.pop(name, None)
            if "-f" in text_of(node):
                self._functions.pop(name, None)
        return True

    def _declaration_command(self, node: Any) -> bool | None:
        """Set variables, which are a function's own if they are declared in one."""
        names = [text_of(c.child_by_field_name("name") or c) for c in node.named_children if c.type != "word"]
        if self._own is not None and node.children[0].type in ("local", "declare", "typeset"):
            self._own = {name: self.script.variables.get(name) for name in names} | self._own
        self._all(node.named_children)
        if re.match(r"\w+\s+-\w*[in]", text_of(node)):  # what is set to them later is calculated, or sets another one
            self.forget(text_of(node), [*names, *(str(self.script.variables.get(name, "")) for name in names)])
            self._special.update(names)
        return True

    def _compound_statement(self, node: Any) -> bool | None:
        if text_of(node).startswith("(("):
            self.forget(text_of(node))
        return self._all(node.named_children)

    def _pipeline(self, node: Any) -> bool | None:
        """Run commands whose variables are their own."""
        return [self._apart(partial(self._run, child)) for child in node.named_children][-1]

    def _function_definition(self, node: Any) -> bool:
        self._functions[text_of(node.child_by_field_name("name"))] = node.child_by_field_name("body")
        return True

    def _command(self, node: Any, stdin: str | None = None) -> bool | None:
        if stdin is None and any(child.type == "herestring_redirect" for child in node.children):
            return self._redirected(node, node)
        self.has_arguments = False
        words = self.words_of(node)
        if not words:  # assignments alone, or an expansion that is empty
            return self._all(child for child in node.children if child.type == "variable_assignment")
        name = words[0]
        if name in self._functions:
            return self._call(name, words[1:])
        if name == "eval" and unknown_in(words) is None:
            return self.run_text(" ".join(words[1:]))
        if name in ("source", ".") and len(words) > 1 and (text := self._sourced(words[1])) is not None:
            return self.run_text(_tidied(text))
        if name == "read" and stdin is not None and {*words[1:-1]} <= {"-r", "-d", "-rd", ""}:
            self.script.variables[words[-1]] = (stdin if "" in words else stdin.partition("\n")[0]).strip()
        elif name in ("readarray", "mapfile") and stdin is not None:
            self.script.variables[words[-1]] = stdin.splitlines()
        elif name in ("exit", "return", "break", "continue"):
            raise _Exit(name)
        elif name in _SETS:
            self.forget(text_of(node), words[1:] if name != "printf" or "-v" in words else ())
        elif name in ("test", "["):
            return self.tested([word for word in words[1:] if word != "]"])
        elif name in ("true", "false"):
            return name == "true"
        elif name in ("command", "which", "type", "grep"):
            return None
        elif name in ("cd", "pushd", "popd"):
            folder = entered(self._folder, [word for word in words[1:] if word != "--"], text_of(node))
            self.script.variables[FOLDER] = folder
        elif name == "shift" and self.arguments is not None:
            self.arguments = self.arguments[int(words[1]) if len(words) > 1 and words[1].isdigit() else 1 :]
        elif name == "set" and "--" in words:
            self.arguments = words[words.index("--") + 1 :]
        elif name not in _PRINTS:
            self._add(words, node)
            if name == "exec" and len(words) > 1:
                raise _Exit("exit")
        return True

    def _add(self, words: list[str], node: Any) -> None:
        line = f"line {node.start_point[0] + 1}"
        if words[0].startswith("--") and self.script.commands:
            self.script.commands[-1].unread.append(
                f'{line}, "{" ".join(words)[:60]}", which is no part of it: the line before has no \\ at its end'
            )
            return
        command = Command(notes={"$@": NO_ARGUMENTS} if self.has_arguments else {})
        for word in words:
            command.add(from_start(self._folder, word), f" ({line})")
        self.script.commands.append(command)

    def _call(self, name: str, arguments: list[str]) -> bool | None:
        body, former, own = self._functions[name], self.arguments, self._own
        self.arguments, self._own = arguments, {}
        try:
            return self._run(body)
        except _Exit as end:
            if end.args != ("return",):
                raise
            return None
        finally:
            variables = (self.script.variables | self._own).items()
            self.script.variables = {each: value for each, value in variables if value is not None}
            self.arguments, self._own = former, own

    def _redirected_statement(self, node: Any) -> bool | None:
        return self._redirected(node, node.child_by_field_name("body"))

    def _redirected(self, node: Any, body: Any) -> bool | None:
        stdin, target, appends = None, None, False
        for child in (*(body.children if body is not None else ()), *node.children):
            if child.type == "heredoc_redirect":
                stdin = self.heredoc(child)
                for inner in (each for each in child.named_children if each.type == "file_redirect"):
                    target, appends = self._name(inner), any(c.type == ">>" for c in inner.children)
            elif child.type == "herestring_redirect":
                stdin = joined([*self.fields(child.named_children[-1]), "\n"])
            elif child.type == "file_redirect" and any(c.type in (">", ">>", ">|") for c in child.children):
                target, appends = self._name(child), any(c.type == ">>" for c in child.children)
        if body is None or body.type != "command":
            return True if body is None else self._run(body)
        name = text_of(body.child_by_field_name("name"))
        if name == "echo" and target is not None:
            stdin = _echoed(self.words_of(body)[1:])
        if stdin is not None and name in ("cat", "tee", "echo"):
            target = target or (self.words_of(body)[-1] if name == "tee" else None)
            if target is not None:
                appends = appends or (name == "tee" and "-a" in self.words_of(body))
                former = (self._sourced(target) or "") if appends else ""
                self.script.files[target] = joined([former, stdin])
            return True
        return self._command(body, stdin)

    def _name(self, redirect: Any) -> str:
        return joined(self.fields(redirect.child_by_field_name("destination")), " ")

    def _list(self, node: Any) -> bool | None:
        left, sign, right = node.children[0], node.children[1].type, node.children[-1]
        status = self._run(left)
        if status is None:
            self._maybe([[right], []], text_of(left))
            return None
        return self._run(right) if status == (sign == "&&") else status

    def _negated_command(self, node: Any) -> bool | None:
        status = self._run(node.named_children[-1])
        return None if status is None else not status

    def _subshell(self, node: Any) -> bool | None:
        return self._apart(lambda: self._all(node.named_children))

    def _apart(self, run: Callable[[], bool | None]) -> bool | None:
        """Run what has variables of its own."""
        former, status = dict(self.script.variables), None
        with suppress(_Exit):
            status = run()
        self.script.variables = former
        return status

    def _if_statement(self, node: Any) -> bool | None:
        """Run the branch whose condition holds; all that may be run if that is unknown."""
        clauses = [each for each in node.named_children if each.type in ("elif_clause", "else_clause")]
        possible: list[list[Any]] = []
        for condition, body in map(_clause, [node, *clauses]):
            if (status := self._all(condition)) is False:
                continue
            possible.append(body)
            if status is True:
                break
        else:
            possible.append([])
        if len(possible) == 1:
            return self._all(possible[0])
        self._maybe(possible, text_of(node).partition("\n")[0])
        return None

    def _case_statement(self, node: Any) -> bool | None:
        fields = self.fields(node.child_by_field_name("value"))
        items = [child for child in node.named_children if child.type == "case_item"]
        patterns = [self._patterns(item) for item in items]
        is_known = len(fields) == 1 and unknown_in(fields, *patterns) is None
        if not is_known or ";&" in text_of(node) or ";;&" in text_of(node):
            self._maybe([*(_clause(item)[1] for item in items), []], text_of(node).partition("\n")[0])
            return None
        for item, own in zip(items, patterns, strict=True):
            if any(fnmatch.fnmatchcase(fields[0], pattern) for pattern in own):
                return self._all(_clause(item)[1])
        return True

    def _patterns(self, item: Any) -> list[str]:
        return [self.pattern(c) for i, c in enumerate(item.children) if item.field_name_for_child(i) == "value"]

    def _for_statement(self, node: Any) -> bool | None:
        name = text_of(node.child_by_field_name("variable"))
        values = [c for i, c in enumerate(node.children) if node.field_name_for_child(i) == "value"]
        fields = [each for child in values for each in self.fields(child)]
        body = node.child_by_field_name("body")
        if unknown_in(fields) is not None:
            self.script.variables[name] = Unknown(f"${name}", "a loop sets to what is not known")
            self._loop(body, text_of(node).partition("\n")[0])
            return None
        for each in fields:
            self.script.variables[name] = each
            try:
                self._run(body)
            except _Exit as end:
                if end.args == ("break",):
                    break
                if end.args != ("continue",):
                    raise
        return True

    def _loop(self, body: Any, condition: str) -> None:
        """Run what may be run again: what it sets is unknown in it too."""
        commands = [*self.script.commands]
        self._maybe([[body], []], condition)
        self.script.commands = commands
        self._maybe([[body], []], condition)

    def _while_statement(self, node: Any) -> bool | None:
        condition = node.child_by_field_name("condition")
        if self._run(condition) is not False:
            self._loop(node.child_by_field_name("body"), text_of(condition))
        return None

    def _c_style_for_statement(self, node: Any) -> None:
        self.forget(text_of(node).partition("\n")[0])
        self._loop(node.child_by_field_name("body"), text_of(node).partition("\n")[0])

    def _maybe(self, branches: list[list[Any]], condition: str) -> None:
        """Run what may be run or not: of variables that differ by it, nothing is known afterwards."""
        former, ends = self.script.variables, list[dict[str, Value]]()
        for branch in branches:
            self.script.variables = dict(former)
            try:
                self._all(branch)
            except _Exit as end:
                if end.args == ("exit",):
                    continue
            ends.append(self.script.variables)
        self.script.variables = dict(former)
        for name in dict.fromkeys(name for end in ends for name in end):
            values = [end.get(name) for end in ends]
            if all(value == values[0] for value in values):
                self.script.variables[name] = values[0]  # type: ignore[assignment]
                continue
            words = [str(word) for value in values for word in ([value] if isinstance(value, str) else value or ())]
            has_options = any(re.search(r"(^|\s)--?\w", word) for word in words)
            self.script.variables[name] = Unknown(f"${name}", f"depends on {condition[:60]!r}", has_options)


def _echoed(words: list[str]) -> str:
    """Return what `echo` prints."""
    options = "".join(takewhile(re.compile("-[neE]+").fullmatch, words))
    text = joined([joined(words[options.count("-") :], " "), "" if "n" in options else "\n"])
    is_escaped = "e" in options and unknown_in(text) is None
    return text.replace("\\n", "\n").replace("\\t", "\t") if is_escaped else text


def _clause(node: Any) -> tuple[list[Any], list[Any]]:
    """Return the condition of a branch, or its patterns, and its statements; an else has these alone."""
    parts: tuple[list[Any], list[Any]] = ([], [])
    begins = node.type == "else_clause"
    for child in node.children:
        if child.type in ("then", ")"):
            begins = True
        elif child.is_named and child.type not in ("elif_clause", "else_clause"):
            parts[begins].append(child)
    return parts
