"""End of a run: `champions` selects the plans, `compile` makes the programs and the file, `summary` takes every number from them."""
