"""Audit of a finished run: evidence for or against its results.  `tuner.audit.run` lists the checks in order."""
