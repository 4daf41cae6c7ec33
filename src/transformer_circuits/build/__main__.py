"""python -m transformer_circuits.build"""

import sys

from transformer_circuits.build import main

sys.exit(main())
