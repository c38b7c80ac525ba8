"""ONNX -> Graph: load safely, clean, translate, rewrite."""

from compiler.frontend.load import load, load_model, model_digest
from compiler.frontend.lower import lower, lower_with_report
from compiler.frontend.weights import seed_weights

__all__ = ["load", "load_model", "lower", "lower_with_report", "model_digest", "seed_weights"]
