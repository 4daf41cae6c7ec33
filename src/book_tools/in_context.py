"""Measure the in-context scores that chapter 10 reads: `make in-context`, some minutes."""

from safetensors.torch import save_file

from transformer_circuits.circuits.in_context import SHIPPED, key, measured_scores
from transformer_circuits.data import held_out_windows
from transformer_circuits.measures.prediction import IN_CONTEXT_WINDOWS
from transformer_circuits.models import load_model
from transformer_circuits.models.release import data_file


def main() -> None:
    windows = held_out_windows(IN_CONTEXT_WINDOWS, 512)
    models = [load_model(name) for name in ("attn-only-1l", "attn-only-2l")]
    save_file({key(model, windows): measured_scores(model, windows) for model in models}, data_file(SHIPPED))


if __name__ == "__main__":
    main()
