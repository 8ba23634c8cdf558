"""A random Llama of four layers as a Hugging Face directory; one token a byte."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from .byte_tokenizer import byte_tokenizer

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 4, 64, 4, 2, 96, 258
HEAD_DIM = HIDDEN // HEADS
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "torch_dtype": "float32",
}
TOKENIZER_CONFIG = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "add_bos_token": False,
    "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
}


def save_tiny_llama(folder: Path) -> None:
    """Equal bytes each time."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(_tensors(), folder / "model.safetensors")
    byte_tokenizer("<s>", "</s>").save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))


def _tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(20240)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.25

    tensors = {
        "model.embed_tokens.weight": random(VOCAB, HIDDEN) * 4,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": random(FFN, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": random(FFN, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": random(HIDDEN, FFN),
        }
    return tensors
