"""Names of `tuner.cost_model.interface`, formerly here: for plug-ins, until the next release."""

from tuner.cost_model.interface import *  # noqa: F403
