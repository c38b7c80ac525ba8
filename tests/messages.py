"""Patterns of messages: the numbers and names that one has to have, not the sentence round them."""

from __future__ import annotations

import re


def naming(*parts: object) -> str:
    """Pattern of a text that has every part, each as whole words, in any order."""
    return "".join(rf"(?=[\s\S]*?(?<!\w){re.escape(str(part))}(?!\w))" for part in parts)


def mentions(text: object, *parts: object) -> bool:
    """Whether a text has every part: `naming`, for texts that are not raised."""
    return re.search(naming(*parts), str(text)) is not None
