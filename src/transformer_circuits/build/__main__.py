"""python -m transformer_circuits.build"""

import sys

from transformer_circuits.build import main

if __name__ == "__main__":
    sys.exit(main())
