"""Search for the next measurements: islands, segments, paths over them, placement on cores."""
