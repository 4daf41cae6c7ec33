"""python -m book_build"""

import signal
import sys

from book_build.build import main

# Ctrl-C ends all at once: Python would wait for its threads, and these for kernels that are only starting.
signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.exit(main())
