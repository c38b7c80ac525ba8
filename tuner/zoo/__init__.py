"""Networks that are at hand by name, `light:NAME` and `made:NAME`: the compiler is given a file or a model, and knows no names."""
