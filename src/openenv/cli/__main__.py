"""``python -m openenv.cli``."""

from __future__ import annotations

import sys

from openenv.cli import main

if __name__ == "__main__":
    sys.exit(main())
