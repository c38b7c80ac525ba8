"""Names of `tuner.testing.strategy`, formerly here: for plug-ins, until the next release."""

from tuner.testing.strategy import *  # noqa: F403
