"""Compiled ONNX out, and back in."""

from compiler.package.onnx_out import Style, variant_table, write_onnx
from simulator.onnx_container import read_container

__all__ = ["Style", "read_container", "variant_table", "write_onnx"]
