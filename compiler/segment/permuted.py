"""Names of `compiler.segment.reorder`, formerly here: for plug-ins, until the next release."""

from compiler.segment.reorder import permute_to as permuted_to  # noqa: F401
