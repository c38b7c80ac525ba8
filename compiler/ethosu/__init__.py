"""Command streams for Arm's Ethos-U65: a network of int8 and a plan of ours in, words for the part and a `.tflite` file out.

The stages in order: a file is read (`tflite_file`), operators become operations on blocks (`lower`), segments become cascades of row stripes
(`cascade`), tensors and weights get addresses (`addresses`), and words are written (`stream`).
"""
