"""Former place of `tuner.cost_model`, for plug-ins, until the next release."""
