"""Every score of this book, with its threshold and its chance level, defined once: on a view of a model, or on the
patterns and matrices that a view gives.

The trainer, the chapters, the ledger of claims, and the generated pages import them from here.
"""
