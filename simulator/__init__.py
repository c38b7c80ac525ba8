"""The machine: facts (`simulator.npu`), meaning (`functional`), time (`timing`), order (`sanitizer`)."""

from simulator.kernel_cache import use_own_folder

VERSION = "1.2"
"""Of what a plan is measured to take: of the clock, and of the code that the compiler makes of a plan.  Measurements of another version are
not compared with, or learned from; `tests/compiler/test_measured.py` says when it has to be raised."""

use_own_folder()
