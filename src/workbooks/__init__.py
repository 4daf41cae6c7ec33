"""The exercises of the workbooks: `check` judges, and `helped`, `answered`, `drawn` show what belongs to them."""

from workbooks import solutions  # noqa: F401 registers all exercises
from workbooks.check import check
from workbooks.exercises import EXERCISES
from workbooks.show import answered, drawn, helped

__all__ = ["EXERCISES", "answered", "check", "drawn", "helped"]
