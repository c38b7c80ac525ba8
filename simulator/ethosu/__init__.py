"""An executor of command streams for Arm's Ethos-U65.

It knows the public register interface of the part and nothing else: no compiler, no model format, no other machine of this package.
A stream is decoded word by word (`command_words`), executed on byte arrays (`executor`), and its bytes are counted (`byte_counts`).
"""
