"""The machine: facts (`simulator.npu`), meaning (`functional`), time (`timing`), order (`sanitizer`)."""

from simulator.kernel_cache import use_own_folder

VERSION = "1.0"
"""Of what the simulator computes: measurements of another version are not compared with, or learned from."""

use_own_folder()
