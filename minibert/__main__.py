"""``python -m minibert`` is the command ``minibert``."""

import sys

from minibert.cli import main

if __name__ == "__main__":  # not so in the processes that prepare a corpus, which import this file again
    sys.exit(main())
