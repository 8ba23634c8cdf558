"""A model as a Hugging Face directory: config.json, tokenizer.json, *.safetensors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import ModelError
from .config import ModelConfig
from .hf_config import read_hf_config
from .model_source import ModelSource, find_tensor
from .raw_tensor import RawTensor
from .safetensors_file import read_safetensors

T = TypeVar("T")


class _AddedToken(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    chat_template: str | list[_NamedTemplate] | None = None


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def read_hf_directory(path: Path) -> ModelSource:
    """Raises ModelError naming the missing or faulty file."""
    config = _with_generation_config(read_hf_config(path / "config.json"), path)
    raw_tensors = _read_all_tensors(path)
    settings = _read_json(path / "tokenizer_config.json", _TokenizerConfig, _TokenizerConfig())
    return ModelSource(
        config=config,
        raw_tensors=raw_tensors,
        read=partial(find_tensor, path, raw_tensors),
        tokenizer_json=_read_text(path / "tokenizer.json"),
        chat_template=_chat_template(path, settings),
        bos_token=_content(settings.bos_token),
        eos_token=_content(settings.eos_token),
    )


def _read_all_tensors(path: Path) -> dict[str, RawTensor]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path}: no *.safetensors file; only safetensors weights are read")
    tensors: dict[str, RawTensor] = {}
    for file in files:
        for name, tensor in read_safetensors(file).items():
            if name in tensors:
                raise ModelError(f"{file}: tensor {name} is also in another file of {path}")
            tensors[name] = tensor
    return tensors


def _with_generation_config(config: ModelConfig, path: Path) -> ModelConfig:
    """generation_config.json may name more end tokens (a chat model's end of turn)."""
    generation = _read_json(path / "generation_config.json", _GenerationConfig, _GenerationConfig())
    extra = generation.eos_token_id
    more = [] if extra is None else [extra] if isinstance(extra, int) else extra
    return replace(config, eos_token_ids=tuple(dict.fromkeys((*config.eos_token_ids, *more))))


def _chat_template(path: Path, settings: _TokenizerConfig) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        return _read_text(file)
    if not isinstance(settings.chat_template, list):
        return settings.chat_template
    named = {template.name: template.template for template in settings.chat_template}
    return named.get("default")


def _content(token: str | _AddedToken | None) -> str | None:
    return token.content if isinstance(token, _AddedToken) else token


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error


def _read_json(path: Path, kind: type[T], default: T) -> T:
    if not path.exists():
        return default
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be used: {error}") from error
