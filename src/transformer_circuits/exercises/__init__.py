"""The exercises of the workbooks: `check` judges what a reader wrote, `helped` shows hints and the solution.

Parts 1 to 4 are the workbooks e1 to e4. Importing this package registers all exercises.
"""

from transformer_circuits.exercises import part_1, part_2, part_3, part_4  # noqa: F401
from transformer_circuits.exercises.check import EXERCISES, check, helped

__all__ = ["EXERCISES", "check", "helped"]
