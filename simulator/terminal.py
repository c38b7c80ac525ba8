"""What reaches a terminal: one place, since names come from files, and a terminal obeys what it is sent.

An operator may be called `ESC ]0;...BEL`, which sets the window's title, or hold the mark that makes what follows read from right to left.
Nothing is refused for its name; it is shown.
"""

from __future__ import annotations

import re
import sys
from typing import TextIO

# C0, DEL and C1; marks, embeddings, overrides and isolates of direction; separators of lines and paragraphs; halves of pairs, which no
# encoding takes (a file name that is not UTF-8 has them)
_OBEYED = r"\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_OBEYED}]")
_IN_LINE = re.compile(f"[\n{_OBEYED}]")
_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def shown(name: str) -> str:
    """A name as one can read it: what a terminal would obey, as an escape of Python's."""
    return _IN_LINE.sub(_escaped, name)


def shown_text(text: str) -> str:
    """The same of several lines, whose ends stay."""
    return _IN_TEXT.sub(_escaped, text)


def shown_json(text: str) -> str:
    """A text of JSON with the same in its strings as JSON's own escapes: a reader finds every name as it is."""
    import json  # `--help` does without

    return _IN_TEXT.sub(lambda found: json.dumps(found[0])[1:-1], text)


def print_line(text: str = "") -> None:
    """One line to stdout."""
    print(shown(text))


def print_text(text: str) -> None:
    """Several lines to stdout, each with its end."""
    print(shown_text(text), end="")


def say(text: str, stream: TextIO | None = None) -> None:
    """One line for a person, at once: to stderr, so that stdout stays a program's."""
    print(shown(text), file=stream or sys.stderr, flush=True)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
