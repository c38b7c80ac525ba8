"""A page as a browser's parser sees it, and what every page promises."""

from __future__ import annotations

import json
from html.parser import HTMLParser

HOSTILE = '</script><img src=x onerror="alert(1)"><b>&'


class Page(HTMLParser):
    """Every tag with its attributes; data: every figure by the id of its script; entries, headings: texts of the navigation and of h2."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, object] = {}
        self.entries: list[str] = []
        self.headings: list[str] = []
        self._inside: str | None = None
        self._texts: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._texts = {"a": self.entries, "h2": self.headings}.get(tag)
        self._inside = dict(attrs).get("id") if tag == "script" and dict(attrs).get("type") == "application/json" else None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.data[self._inside] = json.loads(data)
            self._inside = None
        if self._texts is not None:
            self._texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._texts = None


def assert_navigation_names_headings(page: Page) -> None:
    assert page.entries == page.headings
    assert page.entries


def assert_offline(page: Page) -> None:
    """Nothing is fetched, and the policy forbids it."""
    for tag, attrs in page.tags:
        assert "src" not in attrs, tag
        assert tag != "link"
        assert not (attrs.get("href") or "#").startswith("http")
    policy = next(attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
