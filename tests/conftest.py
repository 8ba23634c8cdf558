"""Fixtures that more than one component's tests use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .prepared_process import end_parent
from .store_process import StartStore, store_processes


@pytest.fixture(scope="session", autouse=True)
def _prepared_processes_end() -> Iterator[None]:
    yield
    end_parent()


@pytest.fixture
def store_daemon(tmp_path: Path) -> Iterator[StartStore]:
    """`store_daemon(*flags)` starts a real store daemon, see store_process.py."""
    with store_processes(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def module_store_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartStore]:
    """As `store_daemon`, for daemons that the tests of a module share."""
    with store_processes(tmp_path_factory.mktemp("stores")) as start:
        yield start


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of four layers as a Hugging Face directory; one token a byte."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    folder.mkdir()
    layers, hidden, heads, kv_heads, ffn, vocab = 4, 64, 4, 2, 96, 258
    head_dim = hidden // heads
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
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
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(20240)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.25

    tensors = {
        "model.embed_tokens.weight": random(vocab, hidden) * 4,
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": random(vocab, hidden),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": torch.ones(hidden),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden),
            f"{prefix}.self_attn.q_proj.weight": random(heads * head_dim, hidden),
            f"{prefix}.self_attn.k_proj.weight": random(kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.v_proj.weight": random(kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.o_proj.weight": random(hidden, heads * head_dim),
            f"{prefix}.mlp.gate_proj.weight": random(ffn, hidden),
            f"{prefix}.mlp.up_proj.weight": random(ffn, hidden),
            f"{prefix}.mlp.down_proj.weight": random(hidden, ffn),
        }
    save_file(tensors, folder / "model.safetensors")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": False,
        "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
