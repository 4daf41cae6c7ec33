"""Every score of this book, with its threshold and its chance level, defined once.

The trainer, the chapters, the ledger of claims, and the generated pages import them from here, without TransformerLens.

- `attention`: what a pattern shows (previous-token, start-token, and induction scores)
- `repeats`: random tokens that occur twice, on which induction is measured
- `prediction`: losses, the share of right first guesses, the in-context score
- `kept`: what several chapters measure alike, on disk
- `weights`: positivity and composition ratios, from products of the weights
"""
