"""Files that repeat what others say agree with them: the version of a release, and what is installed without torch."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import reelworks

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_changelog_and_the_citation_name_the_version_and_its_day() -> None:
    number, day = re.findall(r"^## \[([\d.]+)\] - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)[0]
    assert reelworks.__version__ == number
    assert f"\nversion: {number}\ndate-released: {day}\n" in read("CITATION.cff")


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
