"""Named networks, `light:NAME` and `made:NAME`: the compiler itself takes only files and models."""
