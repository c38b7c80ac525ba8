"""Text for a terminal, with control characters escaped: names come from files, and a terminal obeys control characters.

An operator may be called `ESC ]0;...BEL`, which sets the window's title, or hold the mark that reverses the direction of text.
No name is refused; it is shown escaped.
"""

from __future__ import annotations

import re
import sys
from typing import TextIO

# C0, DEL and C1; marks, embeddings, overrides and isolates of direction; separators of lines and paragraphs; lone surrogates, which cannot
# be encoded (file names that are not UTF-8 contain them)
_OBEYED = r"\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_OBEYED}]")
_IN_LINE = re.compile(f"[\n{_OBEYED}]")
_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def escape_line(name: str) -> str:
    """A readable name: control characters as Python's escapes."""
    return _IN_LINE.sub(_escaped, name)


def escape_text(text: str) -> str:
    """`escape_line` of several lines, which keep their ends."""
    return _IN_TEXT.sub(_escaped, text)


def escape_json(text: str) -> str:
    """JSON text with control characters of its strings as JSON's own escapes, so that a reader gets every name unchanged."""
    import json  # `--help` does without

    return _IN_TEXT.sub(lambda match: json.dumps(match[0])[1:-1], text)


def print_line(text: str = "") -> None:
    """One line to stdout."""
    print(escape_line(text))


def print_text(text: str) -> None:
    """Several lines to stdout, each with its end."""
    print(escape_text(text), end="")


def say(text: str, stream: TextIO | None = None) -> None:
    """Print one line for the user, at once: to stderr, since stdout is for data."""
    print(escape_line(text), file=stream or sys.stderr, flush=True)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _SHORT.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
