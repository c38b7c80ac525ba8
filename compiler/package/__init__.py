"""Writer and reader of compiled ONNX files."""

from compiler.package.onnx_out import file_with_body, onnx_bytes, variant_table, write_body, write_onnx
from simulator.onnx_container import read_container

__all__ = ["file_with_body", "onnx_bytes", "read_container", "variant_table", "write_body", "write_onnx"]
