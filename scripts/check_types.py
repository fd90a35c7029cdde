"""Check the types of all code, of `examples/`, and of every example in the docstring of a public name, with `mypy --strict`.

No plugin is used, so that a reader's own program is checked with the same types.
"""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import reelworks as rw

ROOT = Path(__file__).parents[1]
CODE = (
    "src/reelworks",
    "benchmarks",
    "drills",
    "scripts",
    *sorted(str(path) for path in (ROOT / "examples").glob("*.py")),
)


def docstring_examples() -> Iterator[tuple[str, str]]:
    """Yield the name of each public object and module member that has examples, and their source."""
    finder = doctest.DocTestFinder(recurse=False)
    for name in rw.__all__:
        public = getattr(rw, name)
        members = {name: public}
        if inspect.ismodule(public):
            members = {f"{name}.{key}": value for key, value in vars(public).items() if not key.startswith("_")}
        for path, member in members.items():
            if inspect.isclass(member) or inspect.isroutine(member):
                for found in finder.find(member, path, module=False, globs={}):
                    source = "".join(example.source for example in found.examples)
                    if source:
                        yield path, source


def as_function(name: str, source: str) -> str:
    """Return an example as a function, since examples use the same names for different things."""
    body = "".join(f"    {line}\n" for line in source.splitlines())
    return f"def example_{name.replace('.', '_')}() -> None:\n{body}\n\n"


def main() -> int:
    """Run mypy, and return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "docstring_examples.py")
        made.write_text("".join(as_function(name, source) for name, source in docstring_examples()), encoding="utf-8")
        code = subprocess.run([sys.executable, "-m", "mypy", *CODE, made], cwd=ROOT).returncode
        if code:
            print(made.read_text(encoding="utf-8"))
        return code


if __name__ == "__main__":
    sys.exit(main())
