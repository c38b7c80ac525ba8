"""Former place of `tuner.testing`, for plug-ins, until the next release."""
