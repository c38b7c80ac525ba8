"""Random graphs over all operators that the frontend supports, compiled, executed and compared with onnxruntime."""
