"""Models of cycles: what they learn from, when they are trained, which are in use."""
