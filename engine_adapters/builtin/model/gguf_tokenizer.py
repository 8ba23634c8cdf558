"""The byte-level BPE tokenizer in a GGUF file, as the JSON that `tokenizers` reads."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import ModelError
from .gguf_file import GGUFFile

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_CONTROL, _USER_DEFINED = 3, 4  # ggml token types


def _split(pattern: str) -> list[dict[str, Any]]:
    """Words by `pattern`, then bytes."""
    return [
        {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        },
        {**_BYTE_LEVEL, "use_regex": False},
    ]


def _llama3_pattern(digits: str) -> str:
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [{**_BYTE_LEVEL, "use_regex": True}],
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {**_BYTE_LEVEL, "use_regex": True},
    ],
    "llama-bpe": _split(_llama3_pattern(r"\p{N}{1,3}")),
    "qwen2": _split(_llama3_pattern(r"\p{N}")),
}
"""By `tokenizer.ggml.pre`."""


def gguf_token(file: GGUFFile, role: str) -> str | None:
    """The text of the `bos`, `eos`, … token, if the file names one."""
    token_id = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
    tokens = file.get("tokenizer.ggml.tokens", list)
    if not isinstance(token_id, int):
        return None
    if not 0 <= token_id < len(tokens):
        raise ModelError(
            f"{file.path}: {role} token {token_id} is outside the {len(tokens)} tokens"
        )
    return str(tokens[token_id])


def gguf_tokenizer_json(file: GGUFFile) -> str:
    """Raises ModelError for a tokenizer other than byte-level BPE with a known pre-tokenizer."""
    if (model := file.get("tokenizer.ggml.model", str)) != "gpt2":
        raise ModelError(
            f"{file.path}: tokenizer model {model!r} is not supported in GGUF; supported: gpt2 "
            "(byte-level BPE)"
        )
    name = file.get("tokenizer.ggml.pre", str)
    if (pre_tokenizers := _PRE_TOKENIZERS.get(name)) is None:
        raise ModelError(
            f"{file.path}: pre-tokenizer {name!r} is not supported; "
            f"supported: {', '.join(_PRE_TOKENIZERS)}"
        )
    tokens = file.get("tokenizer.ggml.tokens", list)
    kinds = file.get("tokenizer.ggml.token_type", list)
    merges = file.get("tokenizer.ggml.merges", list)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            _added_token(token_id, token, special=kind == _CONTROL)
            for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if name == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": _bos_processor(file),
        "decoder": {**_BYTE_LEVEL, "use_regex": True},
        "model": {
            "type": "BPE",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": name == "llama-bpe",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }
    return msgspec.json.encode(tokenizer).decode()


def _added_token(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _bos_processor(file: GGUFFile) -> dict[str, Any] | None:
    """Puts BOS before raw text where the file asks for it."""
    bos = gguf_token(file, "bos")
    if bos is None or not file.metadata.get("tokenizer.ggml.add_bos_token", False):
        return None
    bos_id = file.metadata["tokenizer.ggml.bos_token_id"]
    start, text = (
        {"SpecialToken": {"id": bos, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [start, text],
        "pair": [start, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
