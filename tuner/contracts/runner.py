"""Names of `tuner.testing.runner`, formerly here: for plug-ins, until the next release."""

from tuner.testing.runner import *  # noqa: F403
