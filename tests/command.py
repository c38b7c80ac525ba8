"""`tilefarm` in a process of its own that asks onnxruntime itself: a child for it imports for a second what `test_reference.py` tests.

python -m tests.command tune MODEL ...
"""

from __future__ import annotations

import sys
from unittest import mock

import tests.inline_reference
from tuner.cli import main

if __name__ == "__main__":
    with mock.patch("tuner.verify.reference._run", tests.inline_reference.run):
        sys.exit(main())
