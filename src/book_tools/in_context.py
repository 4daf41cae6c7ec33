"""Measure the in-context scores that chapter 10 reads: `make in-context`, some minutes."""

from safetensors.torch import save_file

from transformer_circuits.data import held_out_windows
from transformer_circuits.measures.prediction import IN_CONTEXT_WINDOWS, RECORDED_SCORES, digest_of, in_context_score
from transformer_circuits.models import load_model
from transformer_circuits.models.view import View
from transformer_circuits.paths import data_file


def main() -> None:
    windows = held_out_windows(IN_CONTEXT_WINDOWS, 512)
    models = [load_model(name) for name in ("attn-only-1l", "attn-only-2l")]
    scores = {digest_of(model, windows): in_context_score(View(model).losses(windows)) for model in models}
    save_file(scores, data_file(RECORDED_SCORES))


if __name__ == "__main__":
    main()
