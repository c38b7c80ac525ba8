"""End of a run: `champions` become plans, `compile` makes them programs and one file, `summary` takes every number from those."""
