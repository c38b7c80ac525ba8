"""Command streams for Arm's Ethos-U65: a network of int8 and a plan of ours in, words for the part and a `.tflite` file out.

The stages in order: a plan becomes segments of a network (`plan_mapping`), operators become operations on blocks (`operator_rules`),
segments become cascades of row stripes (`cascade`) with addresses in SRAM (`segment_layout`), words are written (`stream`), and files of
them (`driver_file`).
"""
