"""`python -m txstream` runs the `txstream` command."""

from __future__ import annotations

import sys

from txstream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
