"""`python -m tinysubnets` is the command `tsn`."""

from __future__ import annotations

import sys

from tinysubnets.cli import main

if __name__ == "__main__":
    sys.exit(main())
