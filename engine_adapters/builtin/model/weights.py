"""A decoder's weights, fused for fewer and larger matrix products, and their digest."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import msgspec
import torch
from blake3 import blake3
from torch import Tensor

from .config import ModelConfig
from .raw_tensor import RawTensor

ReadTensor = Callable[[str, tuple[int, ...]], Tensor]
"""A tensor under its Hugging Face name, float32, of exactly that shape; raises ModelError."""

SAMPLES_PER_TENSOR = 4
SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """`qkv` stacks the rows of Q, K and V; `gate_up` those of gate and up projection."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All float32, on one device; projections are `[out, in]`."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head: Tensor  # the embedding itself when tied


def assemble_weights(config: ModelConfig, read: ReadTensor) -> Weights:
    """Raises what `read` raises."""
    embedding = read("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(config, read, layer) for layer in range(config.num_layers)),
        final_norm=read("model.norm.weight", (config.hidden_size,)),
        lm_head=embedding
        if config.tie_embeddings
        else read("lm_head.weight", (config.vocab_size, config.hidden_size)),
    )


def _layer(config: ModelConfig, read: ReadTensor, layer: int) -> LayerWeights:
    prefix = f"model.layers.{layer}."
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    projections = (("q", query_rows), ("k", kv_rows), ("v", kv_rows))
    attention = prefix + "self_attn."

    def head_norm(name: str) -> Tensor | None:
        return read(f"{attention}{name}_norm.weight", (head_dim,)) if config.qk_norm else None

    return LayerWeights(
        attention_norm=read(prefix + "input_layernorm.weight", (hidden,)),
        qkv=torch.cat(
            [read(f"{attention}{name}_proj.weight", (rows, hidden)) for name, rows in projections]
        ),
        qkv_bias=torch.cat(
            [read(f"{attention}{name}_proj.bias", (rows,)) for name, rows in projections]
        )
        if config.qkv_bias
        else None,
        query_norm=head_norm("q"),
        key_norm=head_norm("k"),
        output=read(attention + "o_proj.weight", (hidden, query_rows)),
        mlp_norm=read(prefix + "post_attention_layernorm.weight", (hidden,)),
        gate_up=torch.cat(
            [read(f"{prefix}mlp.{name}_proj.weight", (inner, hidden)) for name in ("gate", "up")]
        ),
        down=read(prefix + "mlp.down_proj.weight", (hidden, inner)),
    )


def weights_digest(config: ModelConfig, tensors: Iterable[RawTensor]) -> str:
    """Hex digest of the config, every tensor's name, encoding and shape, and sampled bytes of
    each (all of it when small): the identity of the weights, whatever the file is called."""
    hasher = blake3(b"moontide.weights.v1")

    def update(part: bytes | memoryview) -> None:
        hasher.update(struct.pack("<Q", len(part)))
        hasher.update(part)

    update(msgspec.json.encode(asdict(config), order="sorted"))
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        update(msgspec.json.encode([tensor.name, tensor.encoding, tensor.shape]))
        for sample in _samples(tensor.data):
            update(sample)
    return hasher.hexdigest()


def _samples(data: memoryview) -> list[memoryview]:
    if len(data) <= SAMPLES_PER_TENSOR * SAMPLE_BYTES:
        return [data]
    last = len(data) - SAMPLE_BYTES
    starts = [last * index // (SAMPLES_PER_TENSOR - 1) for index in range(SAMPLES_PER_TENSOR)]
    return [data[start : start + SAMPLE_BYTES] for start in starts]
