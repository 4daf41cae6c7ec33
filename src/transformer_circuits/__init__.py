"""Transformer Circuits, Reproduced: what the chapters share."""

import warnings

# Without ipywidgets tqdm prints a warning into the first cell of each notebook; text bars do.
warnings.filterwarnings("ignore", message="IProgress not found")
