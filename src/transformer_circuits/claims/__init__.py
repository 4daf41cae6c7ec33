"""The paper's claims: what each states, how it is measured and judged, and the result."""

from transformer_circuits.claims.ledger import LedgerError, Record, Verdict, judge
from transformer_circuits.claims.show import Verdicts as verdicts

__all__ = ["LedgerError", "Record", "Verdict", "judge", "verdicts"]
