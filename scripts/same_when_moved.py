"""Show that modules were moved and not changed: python scripts/same_when_moved.py BEFORE [AFTER]

Compares the syntax trees of all modules of two commits, without their imports. Names of modules and paths in texts count as
equal if the one was moved to the other. Prints each module that differs, and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys

_DOTTED = re.compile(r"\b[a-z_]+(?:[./][a-z_0-9]+)+\b")


def main(before: str, after: str = "HEAD") -> int:
    """Compare two commits, and return the exit status."""
    moved = _moves(before, after)
    modules = {_module(old): _module(new) for old, new in moved.items()}
    differ = [f"{old} -> {new}" for old, new in moved.items() if not _same(before, old, after, new, modules)]
    print(f"{len(moved)} modules, {sum(old != new for old, new in moved.items())} of them moved, {len(differ)} differ")
    print(*differ, sep="\n")
    return int(bool(differ))


def _moves(before: str, after: str) -> dict[str, str]:
    """Return the new path of each module that both commits have."""
    kept = {
        path: path for path in _git("ls-tree", "-r", "--name-only", after, "src").split("\n") if path.endswith(".py")
    }
    renames = _git("diff", "--name-status", "-M30", "-l0", "--diff-filter=R", before, after, "--", "src")
    pairs = (line.split("\t")[1:] for line in renames.splitlines())
    former = set(_git("ls-tree", "-r", "--name-only", before, "src").split("\n"))
    return {path: path for path in kept if path in former} | {o: n for o, n in pairs if o.endswith(".py")}


def _same(before: str, old: str, after: str, new: str, modules: dict[str, str]) -> bool:
    (tree, texts), (moved_tree, moved_texts) = _read(before, old), _read(after, new)
    return tree == moved_tree and all(_same_text(*pair, modules) for pair in zip(texts, moved_texts, strict=True))


def _same_text(text: str, moved_text: str, modules: dict[str, str]) -> bool:
    names, moved_names = _DOTTED.findall(text), _DOTTED.findall(moved_text)
    return _DOTTED.sub("", text) == _DOTTED.sub("", moved_text) and all(
        moved in (name, _renamed(name, modules)) for name, moved in zip(names, moved_names, strict=True)
    )


def _read(commit: str, path: str) -> tuple[str, list[str]]:
    """Return a module's syntax tree without imports and texts, and its texts."""
    tree = ast.parse(_git("show", f"{commit}:{path}"))
    texts = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(found := getattr(node, field, None), list):
                setattr(node, field, [child for child in found if not isinstance(child, (ast.Import, ast.ImportFrom))])
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
            node.value = ""
    return ast.dump(tree), texts


def _renamed(text: str, modules: dict[str, str]) -> str:
    """Return a dotted name or a path as it is called after the move; others are returned as they are."""
    sign = "/" if "/" in text else "."
    parts = text.split(sign)
    start = parts.index("reelworks") + 1 if "reelworks" in parts else 0
    for end in range(len(parts), start, -1):
        if moved := modules.get(".".join(parts[start:end]).removesuffix(".py")):
            ending = ".py" if parts[end - 1].endswith(".py") else ""
            return sign.join([*parts[:start], *moved.split("."), *parts[end:]]) + ending
    return text


def _module(path: str) -> str:
    return path.removeprefix("src/reelworks/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, encoding="utf-8").stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
