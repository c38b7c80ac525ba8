"""Reference arithmetic of onnxruntime on int8 and uint8, in numpy: one function per kernel, equal in every bit.

The order of operations is that of the kernels for x86 with AVX2 (`docs/accuracy.md`).  Graphs are unknown here.
Inputs and outputs have the names of ONNX (x, w, a, b, y); `x_q` is the quantisation of x.
"""
