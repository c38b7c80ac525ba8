"""Audit of a finished run: evidence for or against its results.  `tuner.audit.audit_run` lists the checks in order."""
