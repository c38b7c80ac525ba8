"""Models of integers as `.tflite` files: the format, networks, and their ONNX form, from which plans are made."""
