from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from moontide.engine_adapters.builtin.errors import ModelError
from moontide.engine_adapters.builtin.model import Detokenizer, StopMatcher

TEXTS = ["plain", "naïve café – “quoted”", "日本語テキスト", "👩‍👩‍👧 family", " lead\n\ttabs ", ""]


def stream(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral: ▁ for a space, and <0xHH> for bytes no piece covers."""
    vocab = {"<unk>": 0, "▁a": 1, "b": 2, "▁": 3, "c": 4}
    vocab |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(byte_tokenizer: Tokenizer, text: str) -> None:
    pieces = stream(byte_tokenizer, byte_tokenizer.encode(text).ids)
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


@given(st.lists(st.integers(0, 257), max_size=30))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_tokens_stream_to_what_decoding_at_once_gives(
    byte_tokenizer: Tokenizer, token_ids: list[int]
) -> None:
    assert "".join(stream(byte_tokenizer, token_ids)) == byte_tokenizer.decode(token_ids)


def test_a_character_comes_with_its_last_byte(byte_tokenizer: Tokenizer) -> None:
    token_ids = byte_tokenizer.encode("é€").ids
    assert stream(byte_tokenizer, token_ids) == ["", "é", "", "", "€", ""]


def test_bytes_that_stay_incomplete_are_replaced_at_the_end(byte_tokenizer: Tokenizer) -> None:
    token_ids = byte_tokenizer.encode("a€").ids[:-1]
    assert stream(byte_tokenizer, token_ids) == ["a", "", "", "�"]


def test_special_and_unknown_tokens_have_no_text(byte_tokenizer: Tokenizer) -> None:
    token_ids = [256, *byte_tokenizer.encode("x").ids, 257, 299]
    assert "".join(stream(byte_tokenizer, token_ids)) == "x"


def test_an_added_token_that_is_not_special_stands_for_itself(byte_tokenizer: Tokenizer) -> None:
    tokenizer = Tokenizer.from_str(byte_tokenizer.to_str())
    tokenizer.add_tokens([AddedToken("<think> é", special=False)])
    token_id = tokenizer.token_to_id("<think> é")
    assert "".join(stream(tokenizer, [token_id])) == tokenizer.decode([token_id]) == "<think> é"


def test_byte_fallback_joins_bytes_and_keeps_the_leading_space(byte_fallback: Tokenizer) -> None:
    euro = [5 + byte for byte in "€".encode()]
    assert stream(byte_fallback, [1, 2, *euro, 3, 4]) == [" a", "b", "", "", "€", " ", "c", ""]
    assert byte_fallback.decode([1, 2, *euro, 3, 4]) == "ab€ c"


def test_a_tokenizer_with_another_decoder_is_refused_by_name(byte_tokenizer: Tokenizer) -> None:
    tokenizer = Tokenizer.from_str(byte_tokenizer.to_str())
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="'WordPiece' is not supported"):
        Detokenizer(tokenizer)


def cut(stop: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stop)
    text = "".join(matcher.push(piece) for piece in pieces)
    return text + matcher.flush(), matcher.matched


def test_text_is_cut_before_a_stop_string_split_over_pieces() -> None:
    assert cut(["END"], ["abc E", "N", "D tail"]) == ("abc ", "END")
    assert cut(["END"], ["abc E", "N", "d"]) == ("abc ENd", None)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.push(piece) for piece in ("hi\n", "\n", "Us", "e", "x")] == [
        "hi",
        "",
        "",
        "",
        "\n\nUsex",
    ]


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["."])
    assert (matcher.push("a.b"), matcher.push("c"), matcher.flush()) == ("a", "", "")


@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("abc", max_size=4), max_size=8),
)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_the_cut_does_not_depend_on_the_pieces(stop: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    expected: tuple[str, str | None] = (text, None)
    for end in range(1, len(text) + 1):  # the stop string complete first, the longest of those
        matches = [one for one in stop if text[:end].endswith(one)]
        if matches:
            longest = max(matches, key=len)
            expected = (text[: end - len(longest)], longest)
            break
    assert cut(stop, pieces) == expected
    assert cut(stop, list(text)) == expected
