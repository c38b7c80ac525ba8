"""`python -m tuner`: the command from a source tree."""

import sys

from tuner.cli import main

sys.exit(main())
