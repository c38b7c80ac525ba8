"""What onnxruntime computes on int8 and uint8, in numpy: a function for each kernel, equal to it in every bit.

The order of operations is that of its kernels for x86 with AVX2 (`docs/accuracy.md`); nothing here knows a graph.
"""
