"""Real models: what chapter 18 measures on public models, judged by the ledger, and the records of it."""
