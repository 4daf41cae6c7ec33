"""The paper's claims: what each says, how it is measured and judged, and what came out."""

from transformer_circuits.claims.ledger import LedgerError, Record, Verdict, judge
from transformer_circuits.claims.show import verdicts

__all__ = ["LedgerError", "Record", "Verdict", "judge", "verdicts"]
