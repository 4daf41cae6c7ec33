"""The paper's mathematics, one module per idea: pure functions of weights and tokens, no plotting.

All of it is written for row vectors, as TransformerLens does: a residual vector x is multiplied from the right, `x @
W_V @ W_O`. The paper multiplies column vectors from the left, so its W_OV is the transpose of `W_V @ W_O`.
"""
