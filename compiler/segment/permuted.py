"""Names of `compiler.segment.reorder`, formerly here: for plug-ins, until the next release."""

from compiler.segment.reorder import *  # noqa: F403
