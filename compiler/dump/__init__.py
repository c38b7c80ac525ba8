"""Text of every stage's result: one line per entry, so that `diff` can compare two texts.

`compiler.compiler_stages` names the function of each stage.  Its lines have no line ends, because a name may contain one.
Addresses are in blocks of 32 bytes and look as in records, `L1[640]`; ranges are half-open, `0:5`.
"""
