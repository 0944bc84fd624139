"""``python -m mnagt`` is ``mnagt``."""

import os
import sys

from mnagt.cli import main

if __name__ == "__main__":
    code = main()
    if os.environ.get("WORLD_SIZE", "1") != "1":  # one rank of several: a thread of Gloo may outlive Python and abort
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
