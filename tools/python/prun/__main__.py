"""The prun command: `python -m prun plan.lua --nproc 2`."""
from __future__ import annotations

import os
import sys

from .command import executable
from .errors import PrunError


def main() -> None:
    """Replaces this process by the command."""
    try:
        program = executable()
    except PrunError as error:
        sys.exit(f"prun: {error}")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
