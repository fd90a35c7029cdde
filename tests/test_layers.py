"""Which package may import which, and which modules stay free of torch: read from the source by AST."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import sources

SOURCE = Path(__file__).parents[1] / "src" / "reelworks"

# A wing imports from its own floor and from those below it.
FLOORS = (
    ("core", "data"),  # the library: whatever a loop of one's own needs
    ("models",),
    ("training",),
    ("inference",),
    ("reports", "quickstart", "demo", "testing", "annexes", "commands"),
)
ROOMY = ("data", "models", "training", "inference", "annexes")
# Who may import a wing of the last floor, beside itself; annexes are found by name (`core/annexes.py`).
ENTRANCES = {"annexes": (), "commands": ("annexes",)}
MAY_IMPORT_ANY_CONFIG = ("training.recipe",)  # a recipe is composed of every room's config.py
HEAVY = ("torch", "torchvision", "diffusers", "transformers", "peft", "ray")
HEAVY_FOR_RECIPES = (*HEAVY, "pyarrow", "av")  # which every command reads, before it first says something
TORCH_FREE_PACKAGES = (
    "core",
    "data.run",
    "data.catalog",
    "data.buckets",
    "data.schedule",
    "data.media",
    "training.recipe",
    "training.plan",
    "training.coverage",
    "quickstart",
    "reports",
    "annexes.cluster",
    "annexes.imports",
    "annexes.learning",
    "annexes.page",
    "annexes.quality",
    "commands",
)
# Beside the light ones of a room.
WITH_TORCH = ("annexes.learning.account", "annexes.learning.rounds", "annexes.quality.clip_measures")
TORCH_FREE_MODULES = (
    *(
        f"annexes.captions.{name}"
        for name in ("answers", "asking", "caption", "captioner", "clips", "command", "frames")
    ),
    *(f"annexes.captions.{name}" for name in ("caption_list", "prompts", "record", "request", "server")),
    "annexes.hub.request",
    "annexes.lora.request",
    "annexes.lora.results",
    "data.checkpoint.config",
    "data.checkpoint.disk_space",
    "data.checkpoint.folder",
    "data.checkpoint.listing",
    "data.checkpoint.locate",
    "data.checkpoint.manifest",
    "data.checkpoint.mirror",
    "data.checkpoint.mirror.fetch",
    "data.checkpoint.mirror.files",
    "data.checkpoint.mirror.mirror",
    "data.checkpoint.mirror.remote",
    "data.checkpoint.names",
    "data.checkpoint.policy",
    "data.checkpoint.read_lock",
    "data.checkpoint.retention",
    "data.checkpoint.store",
    "data.checkpoint.verify",
    "data.loader.dataset",
    "data.loader.position",
    "data.loader.resume",
    "inference.evaluate.request",
    "inference.generate.defaults",
    "inference.generate.request",
    "models.components",
    "models.export.config",
    "models.family",
    "models.registry",
    "models.storage.file_facts",
    "training.loop.request",
    "training.memory.memory",
    "training.memory.memory_presets",
    "training.memory.published_sizes",
    "training.memory.tune_request",
)


# A method that library users call on a class imports its worker when called; a registry lists a folder.
FACADES = {("data.catalog.store.store", "data.catalog.scan.scan"), ("models.registry", "models.families")}


class Import(NamedTuple):
    """A module's import: the module it reaches, and whether importing the one runs the other."""

    target: str
    at_import: bool


class Tree(NamedTuple):
    """Modules below a package's folder by dotted name (`data.catalog.scan.scan`), with their imports."""

    imports: dict[str, list[Import]]
    relative: list[str]


def read_sources(root: Path) -> dict[str, str]:
    return {_name(root, file): file.read_text(encoding="utf-8") for file in sorted(root.rglob("*.py"))}


def tree_of(texts: dict[str, str]) -> Tree:
    imports: dict[str, list[Import]] = {}
    relative = []
    for name, text in texts.items():
        imports[name] = []
        for node, at_import in _imports(text):
            if isinstance(node, ast.ImportFrom) and node.level:
                relative.append(name)
            imports[name] += [Import(t, at_import) for t in _targets(node, texts.keys())]
    return Tree(imports, relative)


@functools.cache
def _imports(text: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    return list(_import_nodes(sources.parsed(text), at_import=True))


def _name(root: Path, file: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import_nodes(node: ast.AST, at_import: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_import
            continue
        in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _import_nodes(child, at_import and not in_function and not for_types)


def _targets(node: ast.Import | ast.ImportFrom, known: object) -> list[str]:
    """Modules that a statement imports: ours by the name below `reelworks`, others whole."""
    if isinstance(node, ast.Import):
        return [alias.name.removeprefix("reelworks.") for alias in node.names]
    base = node.module or ""
    if base != "reelworks" and not base.startswith("reelworks."):
        return [base]
    base = base.removeprefix("reelworks").removeprefix(".")
    inside = [f"{base}.{alias.name}".removeprefix(".") for alias in node.names]
    return [name if name in known else base for name in inside]


def wing(module: str) -> str:
    return module.partition(".")[0]


def room(module: str) -> str:
    """Return the part of a wing that a module belongs to; some wings are one room, and `data.catalog` has several."""
    parts = module.split(".")
    if parts[:2] == ["data", "catalog"]:
        return ".".join(parts[: min(3, len(parts) - 1)])
    return ".".join(parts[:2]) if parts[0] in ROOMY else parts[0]


def is_config(module: str) -> bool:
    return module.endswith(".config")


def arrows(tree: Tree) -> Iterator[tuple[str, str]]:
    """Imports among our modules that count: a recipe may know every config.py, and a facade its worker."""
    for module, imports in tree.imports.items():
        if wing(module) in ("", "__main__", "reelworks"):
            continue
        for target, _ in imports:
            composed = is_config(target) and room(module) in MAY_IMPORT_ANY_CONFIG
            if target in tree.imports and not composed and (module, target) not in FACADES:
                yield module, target


def wrong_floors(tree: Tree) -> list[str]:
    floor = {name: i for i, names in enumerate(FLOORS) for name in names}
    wrong = [f"{module}: relative import" for module in tree.relative]
    wrong += [f"{m}: wing {wing(m)} has no floor" for m in tree.imports if wing(m) not in (*floor, "", "__main__")]
    for module, target in arrows(tree):
        mine, theirs = wing(module), wing(target)
        if mine == theirs or theirs not in floor or mine not in floor:
            continue
        if is_config(module) and theirs not in FLOORS[0]:
            wrong.append(f"{module} imports {target}: a config.py knows the library and its own wing")
        elif (
            floor[theirs] > floor[mine]
            or mine not in ENTRANCES.get(theirs, (mine,))
            or (mine, theirs) == ("core", "data")
        ):
            wrong.append(f"{module} imports {target}, which lies above it")
    return wrong


def circles(tree: Tree) -> list[str]:
    """Rooms of which each leads to the others; each can be read alone where there are none."""
    leads: dict[str, set[str]] = {}
    for module, target in arrows(tree):
        ways = room(module), room(target)
        if ways[0] != ways[1] and not is_config(module) and not is_config(target):
            leads.setdefault(ways[0], set()).add(ways[1])
    return _circle(leads)


def cycles(tree: Tree) -> list[str]:
    ours = {
        m: {t for t, _ in imports if t in tree.imports and (m, t) not in FACADES} for m, imports in tree.imports.items()
    }
    return _circle(ours)


def _circle(leads: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(leads).prepare()
    except graphlib.CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


def must_be_torch_free(module: str) -> bool:
    entrance = wing(module) == "annexes" and module.endswith((".annex", ".cli"))
    light = is_config(module) or module.endswith(".spec") or entrance
    within = any(f"{module}.".startswith(f"{name}.") for name in TORCH_FREE_PACKAGES)
    return light or module in TORCH_FREE_MODULES or (within and module not in WITH_TORCH)


def heavy_imports(tree: Tree) -> list[str]:
    """Chains by which a module that must stay light loads a heavy package when it is imported."""
    found = []
    loads = {module: list(_runs_at_import(tree, module)) for module in tree.imports}
    for module in filter(must_be_torch_free, tree.imports):
        chains = {module: module}
        waiting = [module]
        while waiting:
            here = waiting.pop()
            for target in loads[here]:
                if wing(target) in (HEAVY_FOR_RECIPES if is_config(module) else HEAVY):
                    found.append(f"{chains[here]} -> {target}")
                elif target in tree.imports and target not in chains:
                    chains[target] = f"{chains[here]} -> {target}"
                    waiting.append(target)
    return found


def _runs_at_import(tree: Tree, module: str) -> Iterator[str]:
    for target, at_import in tree.imports[module]:
        if at_import:
            yield target
            parts = target.split(".")  # importing a.b runs a's __init__ as well
            yield from (p for i in range(1, len(parts)) if (p := ".".join(parts[:i])) in tree.imports)


def class_names(root: Path) -> dict[str, list[str]]:
    """Modules that define a class, by its name; those within functions and other classes count too."""
    found: dict[str, list[str]] = {}
    for file in sorted(root.rglob("*.py")):
        for node in sources.statements(file.read_text(encoding="utf-8")):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(_name(root, file))
    return found


def all_problems(root: Path) -> list[str]:
    return problems_of(tree_of(read_sources(root)))


def problems_of(tree: Tree) -> list[str]:
    return wrong_floors(tree) + circles(tree) + cycles(tree) + heavy_imports(tree)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return read_sources(SOURCE)


@pytest.fixture(scope="module")
def tree(texts: dict[str, str]) -> Tree:
    return tree_of(texts)


@pytest.fixture(scope="module")
def known(tree: Tree) -> set[str]:
    """Problems that the source has without what a test plants."""
    return set(problems_of(tree))


def test_wings_import_only_from_their_floor_and_below(tree: Tree) -> None:
    assert wrong_floors(tree) == []


def test_no_room_leads_to_itself_by_way_of_others(tree: Tree) -> None:
    assert circles(tree) == []


def test_no_module_imports_itself_by_way_of_others(tree: Tree) -> None:
    assert cycles(tree) == []


def test_light_modules_never_load_torch(tree: Tree) -> None:
    assert heavy_imports(tree) == []


def test_no_two_classes_share_a_name() -> None:
    assert {name: modules for name, modules in class_names(SOURCE).items() if len(modules) > 1} == {}


def test_a_class_of_a_taken_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "one.py").write_text("class Loader:\n    pass\n", encoding="utf-8")
    (tmp_path / "two.py").write_text("if True:\n    class Loader:\n        pass\n", encoding="utf-8")
    assert class_names(tmp_path) == {"Loader": ["core.one", "two"]}


def test_every_named_module_exists(tree: Tree) -> None:
    assert tree.imports.keys() >= {*TORCH_FREE_MODULES, *TORCH_FREE_PACKAGES}
    assert {wing(module) for module in tree.imports} - {"", "__main__"} == {name for names in FLOORS for name in names}


def test_tests_import_neither_benchmarks_nor_drills() -> None:
    """They and what they share with both, `tests/makers`, stand by themselves."""
    leads = {
        f"{file.name} imports {target}"
        for file in Path(__file__).parent.rglob("*.py")
        if re.search(r"(import|from) (benchmarks|drills)\b", text := file.read_text(encoding="utf-8"))
        for node, _ in _imports(text)
        for target in _targets(node, ())
        if wing(target) in ("benchmarks", "drills")
    }
    assert leads == set()


def test_programs_that_stand_in_texts_import_what_is_there() -> None:
    """Benchmarks, drills and tests start some in processes of their own, where no check of types looks."""
    lacking = {
        f"{file.relative_to(SOURCE.parents[1])}: {module}.{name}"
        for folder in ("benchmarks", "drills", "scripts", "tests")
        for file in (SOURCE.parents[1] / folder).rglob("*.py")
        for module, names in _LINE_OF_IMPORT.findall(file.read_text(encoding="utf-8"))
        for name in names.split(", ")
        if not _has(SOURCE.joinpath(*module.split(".")), name)
    }
    assert lacking == set()
    assert not _has(SOURCE / "training" / "plan", "clip_history")


_LINE_OF_IMPORT = re.compile(r"from reelworks\.([\w.]+) import (\w+(?:, \w+)*)")


def _has(place: Path, name: str) -> bool:
    """Whether a module or package has a name, or a module of that name."""
    files = [place.with_suffix(".py"), place / "__init__.py"]
    found = any(re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) for file in files if file.exists())
    return found or (place / f"{name}.py").exists() or (place / name).is_dir()


def test_packages_begin_with_what_they_own() -> None:
    for init in SOURCE.rglob("__init__.py"):
        body = ast.parse(init.read_text(encoding="utf-8")).body
        assert ast.get_docstring(ast.Module(body, [])), init
        for node in body[1:] if init.parent != SOURCE else ():  # which is the facade of all
            facade = isinstance(node, ast.ImportFrom) and all(a.asname == a.name for a in node.names)
            assert facade, f"{init}: {ast.unparse(node)}"


@pytest.mark.slow
def test_light_modules_load_without_torch_in_a_fresh_interpreter(tree: Tree) -> None:
    """What the source says is what happens: the whole light part of the program, in one process."""
    light = [f"reelworks.{m}" for m in tree.imports if must_be_torch_free(m)]
    code = f"import importlib, sys\nfor m in {light!r}: importlib.import_module(m)\n"
    code += f"assert not set({HEAVY!r}) & set(sys.modules), set({HEAVY!r}) & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert done.returncode == 0, done.stderr


PLANTS = [
    ("core/shape.py", "import torch", "torch"),
    ("core/hash_rng.py", "from reelworks.data.run import events", "lies above"),
    ("data/buckets/sizes.py", "def f():\n    from reelworks.training.recipe.recipe_file import load", "lies above"),
    ("data/run/lock.py", "from reelworks.data.loader import dataset", "imports"),
    ("data/loader/dataset.py", "from reelworks.training.recipe.recipe import Recipe", "lies above"),
    ("data/catalog/config.py", "from reelworks.data.catalog.store import integrity", "pyarrow"),
    ("data/buckets/config.py", "from reelworks.models.config import ModelConfig", "a config.py knows the library"),
    ("models/family.py", "import torch.nn", "torch"),
    ("training/plan/plan_report.py", "import torch", "torch"),
    ("training/recipe/recipe_file.py", "from reelworks.training.loop import trainer", "imports"),
    ("data/catalog/scan/listing.py", "from reelworks.data.catalog.scan import scan", "imports"),
    ("reports/page.py", "from reelworks.annexes.page import serve", "lies above"),
    ("data/run/lock.py", "from . import folder", "relative import"),
    ("data/checkpoint/names.py", "from reelworks.models.families.stdit3 import model", "torch"),
    ("extra/thing.py", "x = 1", "has no floor"),
]


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [pytest.param(*plant, id=plant[0], marks=[] if i < 4 else pytest.mark.slow) for i, plant in enumerate(PLANTS)],
)
def test_a_planted_import_is_found(texts: dict[str, str], known: set[str], file: str, line: str, said: str) -> None:
    module = _name(SOURCE, SOURCE / file)
    new = set(problems_of(tree_of({**texts, module: f"{texts.get(module, '')}\n\n{line}\n"}))) - known
    assert any(said in problem for problem in new), new


def test_imports_for_types_and_in_functions_cost_nothing(tmp_path: Path) -> None:
    root = tmp_path / "reelworks"
    (root / "core").mkdir(parents=True)
    (root / "core" / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import torch\n",
        encoding="utf-8",
    )
    assert all_problems(root) == []
    (root / "core" / "a.py").write_text("try:\n    import torch\nexcept ImportError:\n    pass\n", encoding="utf-8")
    assert all_problems(root) == ["core.a -> torch"]
