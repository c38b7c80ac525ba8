"""Whether a compiled model computes what onnxruntime does."""
