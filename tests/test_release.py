"""Files that repeat what others say agree with them: the version of a release, and what is installed without torch."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections import defaultdict
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import reelworks

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_changelog_and_the_citation_name_the_version_and_its_day() -> None:
    number, day = re.findall(r"^## \[([\d.]+)\] - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)[0]
    assert reelworks.__version__ == number
    assert f"\nversion: {number}\ndate-released: {day}\n" in read("CITATION.cff")


TEXTS = (".md", ".yaml", ".sh", ".sbatch", ".ipynb")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [f"3.{minor}" for minor in range(50) if f"3.{minor}.0" in SpecifierSet(PROJECT["requires-python"])]


def test_all_say_the_same_versions_of_python() -> None:
    listed = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    assert listed == PYTHONS
    (lowest, highest), makefile = (PYTHONS[0], PYTHONS[-1]), read("Makefile")
    first, *_, last = [tuple(map(int, version.split("."))) for version in PYTHONS]
    assert f"{first} <= sys.version_info < {(3, last[1] + 1)}" in makefile
    pages = [ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").rglob("*.md")]
    for text in (makefile, *(page.read_text(encoding="utf-8") for page in pages)):
        assert not re.search(r"Python 3\.[\d.]+ (or (newer|later)|或)", text)
        assert {*re.findall(r"Python (3\.[\d.]+) (?:to|至) (3\.\d+)", text)} <= {(lowest, highest)}


def test_the_versions_that_the_tests_pass_with_work_with_the_lowest_python() -> None:
    """Of those that are installed here; pip finds no set of versions there otherwise."""
    installed = {canonicalize_name(one.name): one for one in importlib.metadata.distributions()}
    pinned = [Requirement(line) for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    here = [
        one
        for pin in pinned
        if (one := installed.get(canonicalize_name(pin.name))) is not None and one.version in pin.specifier
    ]
    assert len(here) > 100
    wanted = {one.name: one.metadata.get("Requires-Python", "") for one in here}
    assert [name for name, versions in wanted.items() if f"{PYTHONS[0]}.0" not in SpecifierSet(versions)] == []


def test_no_first_command_installs_what_no_index_has() -> None:
    """Where Reelworks is installed, its name with an extra works, as sentences say; a block takes a checkout."""
    pages = [page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.*") if page.suffix in TEXTS]
    lines = [line.strip() for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    typed = [line for line in lines if line.startswith("pip install ")]
    typed += re.findall(r"pip install [^`&]*", read("README.md") + read("README.zh.md"))
    assert len(typed) > 8
    assert [line for line in typed if "reelworks" in line] == []


def test_without_torch_everything_else_that_the_package_needs_is_installed() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    needed = {re.split("[<>=]", line)[0] for line in project["project"]["dependencies"]}
    without = set(project["dependency-groups"]["torch-free"])
    assert needed - without == {"torch", "diffusers", "transformers", "peft", "ftfy"}  # the last one for diffusers


def test_the_lock_is_of_these_dependencies_in_the_versions_that_the_tests_pass_with() -> None:
    lock = tomllib.loads(read("uv.lock"))["package"]
    mentioned = {package["name"]: package for package in lock}["reelworks"]["metadata"]["requires-dist"]
    project = tomllib.loads(read("pyproject.toml"))["project"]
    written = {
        Requirement(line).name for line in chain(project["dependencies"], *project["optional-dependencies"].values())
    }
    assert {one["name"] for one in mentioned} == written - {"reelworks"}, "python scripts/lock.py"
    versions = defaultdict(set)
    for package in lock:
        versions[package["name"]].add(package.get("version"))
    pinned = [Requirement(line) for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    names = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in pinned}
    other = {
        name: versions[name] for name, version in names.items() if name in versions and version not in versions[name]
    }
    assert not other, "python scripts/lock.py"
    assert {name for name in names if name not in versions} <= {"setuptools"}
