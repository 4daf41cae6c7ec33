import functools
import http.server
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from book_tools.corpus import train_tokenizer
from transformer_circuits.paths import ROOT

# Tests import `stamp`, `colab`, and `browser`.
sys.path[:0] = [str(ROOT / ".ci"), str(ROOT / "notebooks"), str(ROOT / "tests" / "book")]

TEXT = "the cat sat on the mat, the dog sat on the cat; def f(x): return x\n"
TINY = """
[model]
n_layers = 1
d_model = 16
n_heads = 2
d_head = 8
d_vocab = 50
n_ctx = 32
[training]
tokens = 40_000
batch = 4
snapshots = 12
evaluate_windows = 4
repeats = 4
precision = "no"
without_start = 0.1
planted = 0.25
"""


@pytest.fixture(scope="session")
def tiny_tokenizer_file(tmp_path_factory) -> Path:
    """A byte-level BPE of 300 tokens with `<|start|>` = 0, like the shipped one but in size."""
    texts = [TEXT + "".join(chr(97 + (i * j) % 26) for j in range(60)) for i in range(26)]
    tokenizer = train_tokenizer(texts, 300)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    assert tokenizer.get_vocab_size() == 300
    return path


@pytest.fixture
def corpus_folder(tmp_path) -> Path:
    """A folder with packed tokens to train on, and `tiny.toml`, a model that trains on them in seconds."""
    for name, n in (("train", 20_000), ("held_out", 2_000)):
        tokens = np.random.default_rng(n).zipf(1.5, n).clip(max=49)
        np.save(tmp_path / f"{name}.npy", tokens.astype(np.uint16))
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


@pytest.fixture
def server(tmp_path):
    """A web server, of this machine only, for the folder `public`; `asked` are the paths that it was asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    serve = functools.partial(Handler, directory=tmp_path / "public")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        server.asked, server.address = asked, f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
