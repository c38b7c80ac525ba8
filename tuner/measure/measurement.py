"""Names of `tuner.measure.request`, formerly here: for plug-ins, until the next release."""

from tuner.measure.request import *  # noqa: F403
