"""`python -m mrfquant.run`: the same as `mrfquant run`."""

import sys

from mrfquant.commands.run import main

if __name__ == "__main__":
    sys.exit(main())
