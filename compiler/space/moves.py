"""Names of `compiler.space.mutators`, formerly here: for plug-ins, until the next release."""

from compiler.space.mutators import *  # noqa: F403
