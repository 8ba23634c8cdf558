"""The Llama-family decoder over a paged KV pool (https://arxiv.org/abs/2302.13971 and, for paging,
https://arxiv.org/abs/2309.06180)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import AttentionSpan, attend, write
from .config import ModelConfig
from .kv_tensors import KVTensors
from .rope import inverse_frequencies, rotate, rotation
from .step import LayerHook, SequenceChunk
from .weights import LayerWeights, Weights


class Decoder:
    """A function of weights, tokens and pool content; keeps no state between calls. Computes in
    float32 whatever the pool's dtype. One thread at a time per `KVTensors`."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self._weights = weights
        self._device = weights.embedding.device
        self._frequencies = inverse_frequencies(config).to(self._device)

    @torch.inference_mode()
    def forward(
        self,
        chunks: Sequence[SequenceChunk],
        kv: KVTensors,
        hook: LayerHook | None = None,
    ) -> Tensor:
        """Runs all chunks as one batch, writes their K and V into `kv` and returns float32 logits
        `[len(chunks), vocab_size]` of each chunk's last token. A sequence's logits do not depend
        on how it is chunked or on what else is in the batch, to about 1e-5."""
        step = _Step(chunks, kv.page_tokens, self._device)
        rotary = rotation(step.positions, self._frequencies)
        hidden = F.embedding(step.token_ids, self._weights.embedding)
        last_layer = self.config.num_layers - 1
        for index, layer in enumerate(self._weights.layers):
            queries, keys, values = self._project(layer, hidden, rotary)
            if hook is not None:
                hook.before_layer(index)
            for span in step.spans:
                write(kv.keys[index], keys, span)
                write(kv.values[index], values, span)
            counts = step.token_counts
            if index == last_layer:  # only the last tokens' hidden states are still needed
                hidden, queries = hidden[step.last_rows], queries[step.last_rows]
                counts = [1] * len(step.spans)
            attended = [
                attend(part, kv.keys[index], kv.values[index], span)
                for part, span in zip(torch.split(queries, counts), step.spans, strict=True)
            ]
            hidden += F.linear(torch.cat(attended), layer.output)
            hidden += self._mlp(layer, hidden)
            if hook is not None:
                hook.after_layer(index)
        return F.linear(self._norm(hidden, self._weights.final_norm), self._weights.lm_head)

    def _project(
        self, layer: LayerWeights, hidden: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[tokens, heads, head_dim]`, the first two rotated."""
        config = self.config
        normed = self._norm(hidden, layer.attention_norm)
        heads = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(hidden), -1, config.head_dim)
        counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        queries, keys, values = torch.split(heads, counts, dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = self._norm(queries, layer.query_norm)
            keys = self._norm(keys, layer.key_norm)
        return rotate(queries, *rotary), rotate(keys, *rotary), values

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = F.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate).mul_(up), layer.down)

    def _norm(self, values: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(values, weight.shape, weight, self.config.rms_eps)


class _Step:
    """A batch of chunks as tensors: the chunks' tokens one after the other."""

    def __init__(
        self, chunks: Sequence[SequenceChunk], page_tokens: int, device: torch.device
    ) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        self.spans: list[AttentionSpan] = []
        for chunk in chunks:
            stop = chunk.start + len(chunk.token_ids)
            assert chunk.start < stop <= len(chunk.pages) * page_tokens
            self.spans.append(AttentionSpan.of(chunk, len(tokens), page_tokens, device))
            tokens.extend(chunk.token_ids)
            positions.extend(range(chunk.start, stop))
        self.token_counts = [len(chunk.token_ids) for chunk in chunks]
        self.token_ids = torch.tensor(tokens, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.last_rows = torch.tensor([span.rows.stop - 1 for span in self.spans], device=device)
