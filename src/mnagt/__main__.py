"""``python -m mnagt`` is ``mnagt``."""

import sys

from mnagt.cli import main

if __name__ == "__main__":
    sys.exit(main())
