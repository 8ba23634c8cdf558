"""The bound on tokens that a text's size gives is never above what the tokenizer makes of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from moontide.conductor.cluster.token_bound import token_bound


def _tokenizer(without: str = "") -> Tokenizer:
    """Every byte but those of the letters `without`, runs of spaces and "a"s, a special token."""
    names = [c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c not in without]
    merges = [(letter * n, letter * n) for letter in "\u0120a" for n in (1, 2, 4, 8)]
    names += [first + second for first, second in merges]
    vocab = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("<|a longer special token|>")])
    return tokenizer


LACKING = _tokenizer(without="\u0104\u00f1")  # bytes 0x04 and 0xf1
TEXTS = st.lists(
    st.sampled_from(
        [" " * 64, "a" * 64, "\x04" * 50, "<|a longer special token|>", "\U00050000", "\u6f22"]
    )
    | st.text(max_size=30),
    max_size=20,
).map("".join)


@given(TEXTS)
def test_no_text_has_fewer_tokens(text: str) -> None:
    bound = token_bound(LACKING.to_str())
    assert bound is not None
    assert bound.fewest(text) <= len(LACKING.encode(text).ids)


def test_it_bounds_what_it_can() -> None:
    bound = token_bound(_tokenizer().to_str())
    assert bound is not None
    assert bound.fewest("a" * 2600) == 100
    assert bound.fewest("") == 0


def _stripping() -> Tokenizer:
    tokenizer = _tokenizer()
    tokenizer.add_special_tokens([AddedToken("<s>", lstrip=True)])
    return tokenizer


def _normalising() -> Tokenizer:
    tokenizer = _tokenizer()
    tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


def _splitting() -> Tokenizer:
    tokenizer = _tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
    )
    return tokenizer


def _truncating() -> Tokenizer:
    tokenizer = _tokenizer()
    tokenizer.enable_truncation(5)
    return tokenizer


@pytest.mark.parametrize("make", [_stripping, _normalising, _splitting, _truncating])
def test_a_tokenizer_that_may_drop_text_bounds_nothing(make: object) -> None:
    assert callable(make)
    assert token_bound(make().to_str()) is None


def test_no_byte_level_bpe_no_bound() -> None:
    words = json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0}}})
    assert token_bound(words) is None
    assert token_bound("{") is None
