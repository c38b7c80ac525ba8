"""Names of `tuner.measure.runner_api`, formerly here: for plug-ins, until the next release."""

from tuner.measure.runner_api import *  # noqa: F403
