"""python -m transformer_circuits.pages NAME OUT: what the module NAME makes, such as watch or readme_figure, in the file OUT and beside it."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    importlib.import_module(f"transformer_circuits.pages.{sys.argv[1]}").main(Path(sys.argv[2]))
