"""Finding and loading a model: `smollm2`, a Hugging Face directory or a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from .config import ModelConfig
from .decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run."""

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
    add_bos_token: bool  # whether raw text is encoded with a leading BOS


def load_model(model: str) -> LoadedModel:
    """`model` is `smollm2`, a directory with config.json, tokenizer.json and *.safetensors, or a
    .gguf file. Raises ModelError naming the file and what is wrong with it."""
    raise NotImplementedError
