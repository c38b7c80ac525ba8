"""Names of `tuner.testing.cost_model`, formerly here: for plug-ins, until the next release."""

from tuner.testing.cost_model import *  # noqa: F403
