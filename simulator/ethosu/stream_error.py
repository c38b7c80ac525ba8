"""The error for a stream that the part does not define, or whose result is not public."""

from simulator.npu.errors import BadInputError


class StreamError(BadInputError):
    """A word, register or operation that is refused; the message names it, its value, and what would be accepted."""
