"""python -m walproof."""

import os
import sys
from pathlib import Path

from walproof.cli.main import main

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()] and Path(__file__).parents[1] != Path.cwd():
    # `python -m` puts the current folder first: a secrets.py that lies there would be imported, as root perhaps.
    del sys.path[0]


if __name__ == "__main__":
    main()
