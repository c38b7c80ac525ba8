"""The payload of a custom operator: driver actions around the words of a command stream.

A payload is words in little-endian order.  The first is `COP1`, the others are actions: their number in the low byte, a parameter in the
upper half. Source: the public driver of the part (`ethosu_driver.c`, Arm, Apache-2.0).
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.ethosu.command_words import to_words
from simulator.ethosu.stream_error import StreamError

MAGIC = int.from_bytes(b"COP1", "little")
_CONFIG, _STREAM, _NOP = 1, 2, 5
PRODUCT_U65 = 1


class Payload(NamedTuple):
    """words: of the command stream.  macs: per cycle.  shared_buffer_bytes: the SHRAM that it is for."""

    words: tuple[int, ...]
    macs: int
    shared_buffer_bytes: int


def read_payload(data: bytes) -> Payload:
    """The stream of a payload, and the part that it says it is for."""
    words = to_words(data)
    if not words or words[0] != MAGIC:
        raise StreamError(f"payload: begins with {data[:4]!r}: expected b'COP1'")
    place, config, stream = 1, None, None
    while place < len(words):
        action, high, parameter = words[place] & 0xFF, words[place] >> 8 & 0xFF, words[place] >> 16
        if action == _NOP and words[place] == _NOP:
            place += 1
        elif action == _CONFIG and config is None:
            if place + 3 > len(words):
                raise StreamError(f"payload word {place}: the end of a configuration is missing")
            config, place = words[place + 1], place + 3
        elif action == _STREAM and stream is None:
            length = high << 16 | parameter
            if place + 1 + length > len(words):
                raise StreamError(f"payload word {place}: a stream of {length} words: expected at most {len(words) - place - 1}")
            stream, place = tuple(words[place + 1 : place + 1 + length]), place + 1 + length
        else:
            raise StreamError(
                f"payload word {place}: action 0x{words[place]:08x}: expected one configuration (1), one stream (2), or none (5)"
            )
    if config is None or stream is None:
        raise StreamError(f"payload: no {'configuration' if config is None else 'stream'}: expected one of each")
    if config >> 28 != PRODUCT_U65:
        raise StreamError(f"payload: product {config >> 28}: expected {PRODUCT_U65}, an Ethos-U65")
    return Payload(stream, 1 << (config & 0xF), (config >> 8 & 0xFF) * 1024)
