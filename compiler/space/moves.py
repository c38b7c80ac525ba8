"""Former module of `compiler.space.mutators`: its names for plug-ins, until the next release."""

from compiler.space.mutators import *  # noqa: F403
