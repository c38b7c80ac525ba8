"""Result of every stage of the compiler as text: a line per thing, so that two texts can be compared with `diff`.

`compiler.compiler_stages` names the function of each stage, which makes lines without ends of its result, since a name may hold one.
An address is in blocks of 32 bytes and looks like those of records, `L1[640]`; ranges are half-open, `0:5`.
"""
