"""The model that fake workers serve: one token a byte, small blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tokenizers import Tokenizer

from moontide.kvstore.keys import BlockKey, Namespace, block_keys
from moontide.kvstore.layout import Group, KVLayout

from ..byte_tokenizer import byte_tokenizer

TOKEN = "cluster-token-for-tests"
MODEL = "tiny"
CONTEXT_TOKENS = 512
BLOCK_TOKENS = 16
LAYOUT = KVLayout((Group("full", 2, 1, 8, "float32"),))
NAMESPACE = Namespace(
    weights_id="w1", layout=LAYOUT, tokenizer_digest="t1", block_tokens=BLOCK_TOKENS
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def tokenizer() -> Tokenizer:
    """One token a byte, and the two special tokens of the template."""
    return byte_tokenizer("<|im_start|>", "<|im_end|>")


def keys_of(token_ids: Sequence[int]) -> list[BlockKey]:
    return block_keys(NAMESPACE, token_ids)
