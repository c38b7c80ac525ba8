"""Proposals of candidates: islands, segments, paths over them, placement on cores."""
