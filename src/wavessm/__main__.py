"""`python -m wavessm` is the command line."""

import sys

from wavessm.cli import main

if __name__ == "__main__":
    sys.exit(main())
