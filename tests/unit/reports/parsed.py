"""A page as its parser sees it."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Collects elements, links and visible text."""

    VOID = frozenset({"meta", "input", "img", "link", "br"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text, self.scripts = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))

    def loads_nothing(self):
        """True if no element brings anything from outside of the page."""
        attributes = [(name, value) for _, found in self.tags for name, value in found.items()]
        links = [v for name, v in attributes if name in ("src", "href", "srcset", "action", "poster") and v]
        tags = {tag for tag, _ in self.tags}
        return not tags & {"link", "iframe", "base", "object", "embed"} and all(
            link.startswith(("data:", "#")) for link in links
        )
