"""GGUF files written by the `gguf` package, read by us."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from moontide.engine_adapters.builtin.errors import ModelError
from moontide.engine_adapters.builtin.model import LoadedModel, load_model
from moontide.engine_adapters.builtin.model.gguf_file import read_gguf
from moontide.engine_adapters.builtin.model.raw_tensor import RawTensor

from .tiny_models import MakeReference, Reference, run_chunks

Q = gguf.GGMLQuantizationType
TYPES = [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q8_0]
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def ggml_name(name: str) -> str:
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None:
        return OTHER_NAMES[name]
    return f"blk.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's own permutation of Q and K (convert_hf_to_gguf.py)."""
    return (
        rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        .swapaxes(1, 2)
        .reshape(rows.shape)
    )


def write_gguf(
    reference: Reference,
    path: Path,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    config = reference.model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture == "qwen3":
        writer.add_key_length(config.head_dim)
    vocabulary = Tokenizer.from_file(str(reference.path / "tokenizer.json")).get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens += ["Ġa", *(f"<pad{index}>" for index in range(len(tokens) + 1, config.vocab_size))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    kinds = [control if token.startswith("<") and len(token) > 1 else normal for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    change(writer)
    for name, tensor in reference.model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows = tensor.numpy()
        if architecture == "llama" and ".q_proj." in name:
            rows = interleave(rows, config.num_attention_heads)
        if architecture == "llama" and ".k_proj." in name:
            rows = interleave(rows, config.num_key_value_heads)
        writer.add_tensor(ggml_name(name), np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen2", "qwen3-tied"])
def test_gguf_and_safetensors_give_the_same_logits(
    name: str, make_reference: MakeReference, tmp_path: Path, token_ids: list[int]
) -> None:
    reference = make_reference(name)
    ours = load_model(str(write_gguf(reference, tmp_path / "tiny.gguf")))
    theirs = load_model(str(reference.path))
    ends = (1, 40, 150)
    assert torch.equal(run_chunks(ours, token_ids, ends), run_chunks(theirs, token_ids, ends))
    assert ours.config.tie_embeddings == theirs.config.tie_embeddings
    assert (ours.name, ours.bos_token, ours.eos_token) == ("tiny", "<s>", "</s>")
    assert ours.config.eos_token_ids == (257,)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_values_equal_those_of_the_gguf_package(kind: Q) -> None:
    values = np.random.default_rng(3).normal(size=(6, 96)).astype(np.float32)
    values[0] = 0.0
    raw = quantize(values, kind)
    tensor = RawTensor("t", kind.name, values.shape, memoryview(raw.tobytes()))
    assert np.array_equal(tensor.to_float32().numpy(), dequantize(raw, kind))


@pytest.fixture(scope="module")
def tiny_file(make_reference: MakeReference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(make_reference("llama"), tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.mark.parametrize("kept", [0, 3, 4, 20, 100, 5000, 0.5, -1])
def test_a_truncated_file_is_refused(tiny_file: Path, tmp_path: Path, kept: float) -> None:
    data = tiny_file.read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(data[: int(kept * len(data)) if kept == 0.5 else int(kept)])
    with pytest.raises(ModelError, match=str(short)):
        load_model(str(short))


@given(place=st.integers(0, 4000), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_damaged_head_is_refused_or_read_but_nothing_else(
    tiny_file: Path, place: int, value: int
) -> None:
    data = bytearray(tiny_file.read_bytes())
    data[place] = value
    damaged = tiny_file.with_name("damaged.gguf")
    damaged.write_bytes(data)
    try:
        file = read_gguf(damaged)
    except ModelError:
        return
    for tensor in file.tensors.values():
        tensor.to_float32()


def without(key: str) -> Callable[[gguf.GGUFWriter], None]:
    def change(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0][key]

    return change


def with_value(key: str, value: Any, kind: gguf.GGUFValueType) -> Callable[[gguf.GGUFWriter], None]:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        writer.add_key_value(key, value, kind)

    return change


STRING, UINT32 = gguf.GGUFValueType.STRING, gguf.GGUFValueType.UINT32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda writer: writer.add_tensor(
                "odd.weight", np.zeros((1, 144), np.uint8), raw_dtype=Q.Q4_K
            ),
            "tensor odd.weight has ggml type 12, which is not supported; supported: F32",
        ),
        (with_value("general.architecture", "gemma", STRING), "architecture 'gemma'"),
        (without("llama.block_count"), "metadata llama.block_count is missing"),
        (with_value("llama.block_count", "3", STRING), "llama.block_count is a str; expected int"),
        (with_value("llama.block_count", 4, UINT32), "tensor blk.3.attn_norm.weight is missing"),
        (with_value("llama.attention.head_count", 0, UINT32), "num_heads is 0"),
        (with_value("llama.feed_forward_length", 95, UINT32), r"the config asks for \(95, 64\)"),
        (with_value("llama.rope.scaling.type", "yarn", STRING), "rope scaling 'yarn'"),
        (with_value("tokenizer.ggml.model", "llama", STRING), "tokenizer model 'llama'"),
        (with_value("tokenizer.ggml.pre", "tekken", STRING), "pre-tokenizer 'tekken'"),
        (with_value("tokenizer.ggml.eos_token_id", 999, UINT32), "eos token 999 is outside"),
        (
            lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32)),
            "rope_freqs.weight .* is not supported in GGUF",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    make_reference: MakeReference,
    tmp_path: Path,
    change: Callable[[gguf.GGUFWriter], None],
    message: str,
) -> None:
    path = write_gguf(make_reference("llama"), tmp_path / "odd.gguf", change)
    with pytest.raises(ModelError, match=message):
        load_model(str(path))


def test_linear_rope_scaling_and_bos_are_taken_from_the_metadata(
    make_reference: MakeReference, tmp_path: Path
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
        writer.add_add_bos_token(True)
        writer.add_chat_template("{{ messages }}")

    path = write_gguf(make_reference("llama"), tmp_path / "scaled.gguf", change)
    model = load_model(str(path))
    assert model.config.rope_scaling_id == "linear:factor=4.0"
    assert model.chat_template == "{{ messages }}"
    assert model.tokenizer.encode("x").tokens == ["<s>", "x"]
    assert model.tokenizer.encode("x", add_special_tokens=False).tokens == ["x"]
    assert json.loads(model.tokenizer_json)["model"]["merges"] == [["Ġ", "a"]]


def test_weights_id_follows_the_content(
    make_reference: MakeReference, tiny_file: Path, tmp_path: Path
) -> None:
    original = load_model(str(tiny_file))
    again = load_model(str(write_gguf(make_reference("llama"), tmp_path / "renamed.gguf")))
    assert again.weights_id == original.weights_id
    assert again.tokenizer_digest == original.tokenizer_digest

    data = bytearray(tiny_file.read_bytes())
    data[-5] ^= 1
    (tmp_path / "changed.gguf").write_bytes(data)
    changed: LoadedModel = load_model(str(tmp_path / "changed.gguf"))
    assert changed.weights_id != original.weights_id
