"""Web page on loopback: one address, GET only, rebuilt at most once every few seconds for any number of browsers."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from time import monotonic

from simulator.npu.errors import TilefarmError
from tuner.report.html import html_document, html_section
from tuner.report.live_page import AGAIN_S

LOOPBACK = "127.0.0.1"


class ServedPage(ThreadingHTTPServer):
    """Server of one page.  make: returns the page's text; a typed error becomes a page of one line.  Raises `OSError` for a taken port."""

    daemon_threads = True

    def __init__(self, port: int, make: Callable[[], str]) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self._make, self._lock, self._page, self._made_at = make, Lock(), b"", float("-inf")

    def page(self) -> bytes:
        """Page in cache, rebuilt when it is old."""
        with self._lock:
            if monotonic() - self._made_at >= AGAIN_S:
                self._page, self._made_at = self._text().encode(), monotonic()
            return self._page

    def _text(self) -> str:
        try:
            return self._make()
        except TilefarmError as error:
            return html_document("No page just now", str(error), [html_section("error", "What is wrong", str(error))], AGAIN_S)


class _Handler(BaseHTTPRequestHandler):
    server: ServedPage
    server_version = "tilefarm"

    def do_GET(self) -> None:
        # DNS rebinding: another site's page would send its own host name
        if self.headers.get("Host", "").partition(":")[0] not in (LOOPBACK, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            page = self.server.page()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Drop the line: the terminal has the address already."""
