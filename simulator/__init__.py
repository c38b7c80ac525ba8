"""The machine: facts (`simulator.npu`), meaning (`functional`), time (`timing`), order (`sanitizer`)."""

VERSION = "1.0"
"""Of what the simulator computes: measurements of another version are not compared with, or learned from."""
