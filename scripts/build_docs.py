"""Build the documentation into site/, strictly, and check what the generator does not.

python scripts/build_docs.py [ROOT]

The generator refuses links to pages and anchors that are not there, and names of the API that cannot be found. Checked
here: every page has one place in the navigation and is named by docs/index.md; every link and picture of the built site
leads to a file of the site; nothing is loaded from a network; no list has become text; links of the Markdown files
beside docs/, and files that pages name, such as `examples/own_loop.py`, are there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
_MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NAMED_FILE = re.compile(r"`((?:benchmarks|drills|examples|recipes|scripts)/[a-z0-9_./-]+\.[a-z]+)`")
_NAMED_MODULE = re.compile(r"`([a-z]+/[a-z0-9_/]+\.py)`")
# Other readers of Markdown take a list without an empty line above it, or with a smaller indent.
_LOST_LIST = re.compile(r"(?:^|\n)\s*((?:[-*+]|\d+\.)\s+[^<\n]+)")
_LOADING = {"img", "script", "source", "iframe", "video"}  # tags whose address is fetched with the page


def main() -> None:
    """Build and check; end with code 1 where something is wrong."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    faults = [*misplaced(root), *broken_names(root)]
    shutil.rmtree(root / "site", ignore_errors=True)  # pages that are no more would stay
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=root, check=False)
    if built.returncode:
        faults.append("zensical build --strict: failed, see above")
    else:
        faults += [*broken_links(root / "site"), *lost_lists(root / "site")]
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    sys.exit(bool(faults))


def misplaced(root: Path) -> list[str]:
    """Find pages without a place in the navigation or in docs/index.md, and places without a page."""
    pages = {path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")}
    nav = tomllib.loads((root / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    placed = Counter(_pages(nav))
    index = (root / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {"index.md", *(link.partition("#")[0] for link in _MARKDOWN_LINK.findall(index))}
    return [
        *(f"docs/{page}: has no place in `nav` of zensical.toml" for page in sorted(pages - placed.keys())),
        *(f"zensical.toml: `nav` names {page}, which is not there" for page in sorted(placed.keys() - pages)),
        *(f"zensical.toml: `nav` names {page} {n} times" for page, n in sorted(placed.items()) if n > 1),
        *(f"docs/{page}: docs/index.md does not link it" for page in sorted(pages - linked)),
    ]


def _pages(nav: object) -> Iterator[str]:
    """All pages of a navigation, which nests lists and tables."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for inner in nav.values():
            yield from _pages(inner)
    elif isinstance(nav, list):
        for inner in nav:
            yield from _pages(inner)


def broken_names(root: Path) -> list[str]:
    """Find links of the Markdown files beside docs/, and files that any page names, that are not there."""
    beside = sorted(root.glob("*.md"))
    faults = []
    for file in [*beside, *sorted((root / "docs").rglob("*.md"))]:
        text = file.read_text(encoding="utf-8")
        links = _MARKDOWN_LINK.findall(text) if file in beside else []
        local = [urlsplit(link) for link in links]
        named = [one.path for one in local if not one.scheme and one.path]
        missing = [name for name in (*named, *_NAMED_FILE.findall(text)) if not (root / name).exists()]
        # Modules are named from the project's folder or from the package; a guide names files that it makes in full.
        places = (root, root / "src", root / "src" / "reelworks")
        modules = [name for name in _NAMED_MODULE.findall(text) if not name.startswith("src/")]
        missing += [name for name in modules if name not in missing and not any((at / name).exists() for at in places)]
        faults += [f"{file.relative_to(root)}: {name} is not there" for name in missing]
    return faults


class _Page(HTMLParser):
    """Anchors and addresses of a page.

    Attributes:
        anchors: What `#...` may name.
        links: Addresses that it links or loads.
        loaded: Those of them that a browser fetches by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names and links."""
        values = {name: value for name, value in attrs if value}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        address = values.get("src") or values.get("href")
        if address:
            self.links.append(address)
            if tag in _LOADING or (tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload")):
                self.loaded.append(address)


@cache
def _page(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def broken_links(site: Path) -> list[str]:
    """Find links of built pages that lead to no file or anchor of the site, and what they load from elsewhere."""
    faults = []
    for file in sorted(site.rglob("*.html")):
        if file.name == "404.html":  # its addresses are a server's
            continue
        where = file.relative_to(site)
        for link in _page(file).links:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (file.parent / unquote(address.path)).resolve() if address.path else file
            if not (target.is_file() and target.is_relative_to(site)):
                faults.append(f"{where}: {link} leads to no file of the site")
            elif address.fragment and target.suffix == ".html" and not _has(target, address.fragment):
                faults.append(f"{where}: {link} leads to no anchor")
        elsewhere = [link for link in _page(file).loaded if urlsplit(link).netloc]
        faults += [f"{where}: {link} is loaded from a network" for link in elsewhere]
    return faults


def lost_lists(site: Path) -> list[str]:
    """Find lists that the generator took for text of a paragraph."""
    return [
        f"{file.relative_to(site)}: {lost[1].strip()!r} stands in a paragraph; give the list an empty line above"
        for file in sorted(site.rglob("*.html"))
        for paragraph in re.findall(r"<p>(.*?)</p>", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        if (lost := _LOST_LIST.search(paragraph))
    ]


def _has(file: Path, fragment: str) -> bool:
    return unquote(fragment) in _page(file).anchors


if __name__ == "__main__":
    main()
