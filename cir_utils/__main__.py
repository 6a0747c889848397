"""``python -m cir_utils``."""

import sys

from cir_utils.cli import main

if __name__ == "__main__":
    sys.exit(main())
