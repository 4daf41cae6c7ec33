import functools
import http.server
import threading
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from book_tools.corpus import train_tokenizer

TEXT = "the cat sat on the mat, the dog sat on the cat; def f(x): return x\n"

LAYERS = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
USUAL = LAYERS | dict(intermediate_size=64, max_position_embeddings=96)
SIZES = {  # an architecture for each thing that differs
    "GPT2": dict(n_embd=32, n_layer=3, n_head=4, n_positions=96),  # learned positions
    "OpenAIGPT": dict(n_embd=32, n_layer=2, n_head=4, n_positions=96),  # normalization after attention
    "T5": dict(d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=64, decoder_start_token_id=0),  # with a decoder
    "Bert": USUAL,  # an encoder
    "Llama": USUAL | dict(num_key_value_heads=2),  # rotary positions and shared keys
    "Qwen3": USUAL | dict(num_key_value_heads=2, head_dim=16),  # normalized queries and keys
    "Gemma2": USUAL | dict(num_key_value_heads=2, head_dim=16, sliding_window=16, attn_logit_softcapping=5.0),
    "OPT": LAYERS | dict(word_embed_proj_dim=16, ffn_dim=64),  # a projection between embeddings and stream
    "Falcon": LAYERS,
    "GPTNeoX": USUAL,  # attention and MLP side by side
}
CLASSES = {
    "GPT2": "GPT2LMHeadModel",
    "OpenAIGPT": "OpenAIGPTLMHeadModel",
    "Bert": "BertForMaskedLM",
    "T5": "T5ForConditionalGeneration",
}


@pytest.fixture(scope="session")
def tiny_tokenizer_file(tmp_path_factory) -> Path:
    """A byte-level BPE of 300 tokens with `<|start|>` = 0, like the shipped one but in size."""
    texts = [TEXT + "".join(chr(97 + (i * j) % 26) for j in range(60)) for i in range(26)]
    tokenizer = train_tokenizer(texts, 300)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    assert tokenizer.get_vocab_size() == 300
    return path


@pytest.fixture(scope="session")
def own_tokenizer(tiny_tokenizer_file):
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer_file))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|start|>"
    )


@pytest.fixture(scope="session")
def make(tmp_path_factory, own_tokenizer):
    """Return a function that makes a folder with a random model and a byte-level tokenizer of 300 tokens, as `save_pretrained` writes them."""

    @functools.cache
    def make(kind: str, tokenizer: bool = True, std: float = 0.1, **settings) -> str:
        folder = str(tmp_path_factory.mktemp(kind))
        settings = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, **SIZES[kind], **settings}
        config = getattr(transformers, f"{kind}Config")(**settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, CLASSES.get(kind, f"{kind}ForCausalLM"))(config)
            for name, parameter in model.named_parameters():
                norm = "norm" in name or "ln_" in name
                torch.nn.init.normal_(parameter, mean=float(norm), std=0.2 if norm else std)
        model.save_pretrained(folder)
        if tokenizer:
            own_tokenizer.save_pretrained(folder)
        return folder

    return make


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
