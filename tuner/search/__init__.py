"""What to measure next: islands, segments, paths over them, placement on cores."""
