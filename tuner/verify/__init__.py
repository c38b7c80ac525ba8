"""Comparison of a compiled model with onnxruntime."""
