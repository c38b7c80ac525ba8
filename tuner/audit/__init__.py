"""Whether the results of a finished run may be trusted: `tuner.audit.run` has the order of what is asked."""
