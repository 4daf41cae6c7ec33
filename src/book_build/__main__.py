"""python -m book_build"""

import sys

from book_build.build import main

sys.exit(main())
