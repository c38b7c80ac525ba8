"""Names of `tuner.testing.target`, formerly here: for plug-ins, until the next release."""

from tuner.testing.target import *  # noqa: F403
