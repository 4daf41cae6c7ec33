"""Count which skip-trigrams occur in the training text, for `circuits.attested`.

    python -m book_tools.attested --corpus DIR --model attn-only-1l --ship data

`DIR` is what `python -m book_tools.corpus` made.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from transformer_circuits.circuits.attested import FILE, N_SOURCES, Text, attest, save
from transformer_circuits.circuits.bigrams import token_frequency
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.circuits.skip_trigrams import Candidates, combined, paper_list
from transformer_circuits.data import bigram_counts, vocabulary
from transformer_circuits.models import load_model
from transformer_circuits.paths import DATA


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder that `book_tools.corpus` made")
    parser.add_argument("--model", default="attn-only-1l", help="a model that `load_model` knows")
    parser.add_argument("--ship", type=Path, default=DATA, help="folder to write to")
    args = parser.parse_args()
    model, bigrams = load_model(args.model), bigram_counts()
    listed = head_dump(model, token_frequency(bigrams), n_sources=N_SOURCES, k=1)
    candidates = Candidates.of(model, torch.tensor(listed["source"].to_numpy()).view(model.cfg.n_heads, -1))
    forms = paper_list(vocabulary(), lambda text: model.tokenizer.encode(text, add_special_tokens=False)).forms
    listed = torch.cat([combined(triple) for triple in forms], dim=1)
    tokens = np.load(args.corpus / "train.npy", mmap_mode="r")
    attested = attest(Text(tokens, bigrams, model.cfg.n_ctx), candidates, listed)
    save(attested, model, args.ship / FILE)
    print(f"{args.ship / FILE}: {attested.right.sum():,} right triples, {attested.never.sum():,} never seen")


if __name__ == "__main__":
    main()
