"""Web pages on loopback: a few addresses, GET only, each rebuilt at most once every few seconds for any number of browsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from time import monotonic
from typing import Any

from simulator.npu.errors import TilefarmError
from tuner.report.html import html_document, html_section
from tuner.report.live_page import AGAIN_S

LOOPBACK = "127.0.0.1"


class _Cached:
    """Text in a cache.  make: returns it."""

    def __init__(self, kind: str, make: Callable[[], str]) -> None:
        self.kind, self._make, self._lock, self._text, self._made_at_s = kind, make, Lock(), b"", float("-inf")

    def text(self) -> bytes:
        """Text, rebuilt when it is old."""
        with self._lock:
            if monotonic() - self._made_at_s >= AGAIN_S:
                self._text, self._made_at_s = self._make().encode(), monotonic()
            return self._text


class ServedPage(ThreadingHTTPServer):
    """Server of a page at `/` and of values as JSON.  page: returns the page's text; values: path -> maker of a value.

    A typed error becomes a page of one line, or `{"error": line}`.  Raises `OSError` for a taken port.
    """

    daemon_threads = True

    def __init__(self, port: int, page: Callable[[], str], values: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.pages = {path: _Cached("application/json", partial(_json, make)) for path, make in values.items()}
        self.pages["/"] = _Cached("text/html; charset=utf-8", partial(_page, page))


def _page(make: Callable[[], str]) -> str:
    try:
        return make()
    except TilefarmError as error:
        return html_document("No page just now", str(error), [html_section("error", "What is wrong", str(error))], AGAIN_S)


def _json(make: Callable[[], Any]) -> str:
    try:
        return json.dumps(make(), allow_nan=False)
    except TilefarmError as error:
        return json.dumps({"error": str(error)})


class _Handler(BaseHTTPRequestHandler):
    server: ServedPage
    server_version = "tilefarm"

    def do_GET(self) -> None:
        # DNS rebinding: another site's page would send its own host name
        if self.headers.get("Host", "").partition(":")[0] not in (LOOPBACK, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif (entry := self.server.pages.get(self.path)) is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            text = entry.text()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", entry.kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Drop the line: the terminal has the address already."""
