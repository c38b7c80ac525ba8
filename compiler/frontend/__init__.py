"""Frontend from ONNX to Graph: safe loading, cleaning, translation, rewrites."""

from compiler.frontend.lower import lower, lower_with_report
from compiler.frontend.onnx_io.load import load, load_model, model_digest
from compiler.frontend.onnx_io.random_weights import seed_weights

__all__ = ["load", "load_model", "lower", "lower_with_report", "model_digest", "seed_weights"]
