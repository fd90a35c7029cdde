"""Files that repeat what others say agree with them: the version of a release, and what is installed without torch."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
    assert needed - without == {"torch", "diffusers", "transformers", "peft"}
