"""Every score of this book, with its threshold and its chance level, defined once.

The trainer, the chapters, the ledger of claims, and the generated pages import them from here, without TransformerLens.
"""
