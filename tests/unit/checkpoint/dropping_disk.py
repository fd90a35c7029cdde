"""A disk that, when its power is cut, keeps what was made durable, and of the rest whatever it likes.

What is assumed is what POSIX promises, and no more:

- fsync of a file makes its content durable, but not its name.
- fsync of a folder makes its names durable, those taken away too, but not what they name.
- A rename within a folder happens whole or not at all.
- Of changes that are not durable each has happened or not, whatever became of those before and after it.
- Content that is not durable is lost, cut in the middle, of its full length but zeros, or whole.

A disk that loses what it said was durable is not in it, nor is damage to what lay there before. Where more
states are possible than can be tried, a sample is: nothing more kept, all kept, each single change lost or kept
alone, and random ones from a fixed seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from reelworks.core import storage

# What lies where, below a root; None is a folder.
Tree = dict[str, bytes | None]
# Names of one folder that change together: what each stands for then, None for nothing.
Names = dict[str, "Node | None"]


@dataclass(eq=False)
class Node:
    """A file or folder: its state now and, apart, what of it is durable."""

    is_folder: bool
    names: dict[str, Node] = field(default_factory=dict)
    durable_names: dict[str, Node] = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)
    content: bytes = b""
    durable: bytes = b""

    def change(self, names: Names) -> None:
        """Change names, not durably yet."""
        _apply(self.names, names)
        self.pending.append(names)

    def sync(self) -> None:
        """Make durable what an fsync of this node does."""
        self.durable_names, self.pending, self.durable = dict(self.names), [], self.content

    def contents(self) -> list[bytes]:
        """What of the content a power cut may leave."""
        assert self.content.startswith(self.durable)
        new = self.content[len(self.durable) :]
        left = [b"", new[: len(new) // 2], bytes(len(new)), new]
        return list(dict.fromkeys(self.durable + part for part in left))


def _apply(names: dict[str, Node], changes: Names) -> None:
    for name, node in changes.items():
        names.pop(name, None)
        if node is not None:
            names[name] = node


class Disk:
    """Follows what happens below a folder, and says what a power cut before each storage call may leave.

    What a call did is seen on the disk, not taken from the call: a change that went past `core.storage`
    fails the recording.
    """

    def __init__(self, root: Path, limit: int) -> None:
        self.root, self.limit = root, limit
        self._nodes: dict[int, Node] = {}
        self.top = self._read(root)
        for node in self._nodes.values():
            node.sync()
        # With the number of the last cut that may leave it: by then the most was told.
        self.states: dict[frozenset[tuple[str, bytes | None]], int] = {}
        self.cuts = 0
        self._last: tuple[str, Path] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Follow what a block does."""

        def guard(kind: str, path: Path) -> None:
            self._see()
            self._last = kind, path

        with storage.guarded(guard):
            yield
        self._see()

    def _read(self, path: Path) -> Node:
        """Make nodes of what is there now."""
        node = Node(path.is_dir())
        self._nodes[path.stat().st_ino] = node
        if node.is_folder:
            node.names = {inner.name: self._read(inner) for inner in path.iterdir()}
        else:
            node.content = path.read_bytes()
        return node

    def _see(self) -> None:
        """Bring the nodes up to what the last call has done, and note what a power cut leaves now."""
        if self._last is not None:
            self._follow(*self._last)
        self._last = None
        assert self._tree(self.top) == read_tree(self.root), "something was changed past the seam"
        self.cuts += 1
        for tree in self._possible():
            self.states[frozenset(tree.items())] = self.cuts

    def _follow(self, kind: str, path: Path) -> None:
        folder = self._at(path.parent) if path != self.root else self.top
        if kind == "fsync":
            self._at(path).sync()
        elif kind == "write":
            self._at(path).content = path.read_bytes()
        elif kind in ("open", "mkdir"):
            if path.name not in folder.names:
                folder.change({path.name: self._read(path)})
        elif kind == "rename":
            node = folder.names[path.name]
            folder.change({path.name: None, self._name_of(node, path.parent): node})
        else:
            folder.change({path.name: None})

    def _name_of(self, node: Node, folder: Path) -> str:
        return next(p.name for p in folder.iterdir() if self._nodes.get(p.stat().st_ino) is node)

    def _at(self, path: Path) -> Node:
        node = self.top
        for name in path.relative_to(self.root).parts:
            node = node.names[name]
        return node

    def _tree(self, node: Node) -> Tree:
        return build(node, lambda n: n.names, lambda n: n.content)

    def _possible(self) -> Iterator[Tree]:
        """Trees that may be left now, as many as the limit allows."""
        open_nodes = [node for node in self._reachable() if node.pending or node.content != node.durable]
        options: list[list[object]] = []
        for node in open_nodes:
            options += [[False, True] for _ in node.pending]
            if not node.is_folder:
                options.append(list(node.contents()))
        for choice in choices([len(o) for o in options], self.limit):
            picked = iter([option[i] for option, i in zip(options, choice, strict=True)])
            names: dict[Node, dict[str, Node]] = {}
            contents: dict[Node, bytes] = {}
            for node in open_nodes:
                names[node] = dict(node.durable_names)
                for changes in node.pending:
                    if next(picked):
                        _apply(names[node], changes)
                if not node.is_folder:
                    contents[node] = next(picked)  # type: ignore[assignment]
            yield build(
                self.top,
                lambda n, names=names: names.get(n, n.durable_names),
                lambda n, contents=contents: contents.get(n, n.durable),
            )

    def _reachable(self) -> list[Node]:
        """All nodes that a name, durable or not, leads to."""
        found: dict[Node, None] = {self.top: None}
        for node in (waiting := [self.top]):
            inner = [*node.durable_names.values(), *node.names.values()]
            inner += [n for changes in node.pending for n in changes.values() if n is not None]
            new = [n for n in dict.fromkeys(inner) if n not in found]
            found |= dict.fromkeys(new)
            waiting += new
        return list(found)


def choices(sizes: list[int], limit: int) -> Iterator[tuple[int, ...]]:
    """Ways to choose one of each so many options; a sample where there are more than the limit."""
    count = 1
    for size in sizes:
        count *= size
    if count <= limit:
        yield from itertools.product(*map(range, sizes))
        return
    nothing, everything = (0,) * len(sizes), tuple(size - 1 for size in sizes)
    for base, other in ((nothing, everything), (everything, nothing)):
        yield base
        for i in range(len(sizes)):
            yield (*base[:i], other[i], *base[i + 1 :])
    chance = random.Random(count)
    for _ in range(limit - 2 * len(sizes)):
        yield tuple(chance.randrange(size) for size in sizes)


def build(top: Node, names: Callable[[Node], dict[str, Node]], content: Callable[[Node], bytes]) -> Tree:
    """Lay nodes out as paths."""
    tree: Tree = {}
    waiting = [("", top)]
    for path, node in waiting:
        if path:
            tree[path] = None if node.is_folder else content(node)
        waiting += [(f"{path}/{name}".lstrip("/"), inner) for name, inner in names(node).items()]
    return tree


def read_tree(root: Path) -> Tree:
    """What lies below a folder."""
    paths = list(root.rglob("*"))
    return {p.relative_to(root).as_posix(): None if p.is_dir() else p.read_bytes() for p in paths}


def write_tree(tree: Tree, root: Path) -> None:
    """Make a folder of it."""
    root.mkdir()
    for path, content in sorted(tree.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
