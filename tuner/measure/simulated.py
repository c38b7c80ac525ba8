"""Names of `tuner.measure.simulator_runner`, formerly here: for plug-ins, until the next release."""

from tuner.measure.simulator_runner import *  # noqa: F403
