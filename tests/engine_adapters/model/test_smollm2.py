"""The real model: golden token ids, a known answer, and bounds on time and memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import jinja2
import pytest

from moontide.engine_adapters.builtin.model import (
    Detokenizer,
    KVTensors,
    LoadedModel,
    Sampling,
    SequenceChunk,
    load_model,
    sample,
)

from ...waiting import within

pytestmark = pytest.mark.model

TEXTS = [
    "In 1999, 12345.67 + 8 = ?",
    "naïve café — “quote” 日本語 👩‍👩‍👧",
    "def f(x):\n    return x**2  # ok\r\n\t\tend",
    "  leading, trailing   and   inner  spaces  ",
    "don't we'll I'M they've",
    "<|im_start|>user\nhi<|im_end|>\n",
    "\u00a0no-break, line separator, e\u0301, ﬁ, \ufeff, \x00",
]


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model("smollm2")


def test_config_is_that_of_the_published_model(smollm2: LoadedModel) -> None:
    config = smollm2.config
    shape = (config.num_layers, config.hidden_size, config.intermediate_size)
    assert shape == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.context_tokens) == (49152, 8192)
    assert (config.rope_theta, config.rope_scaling_id) == (100_000.0, "")
    assert config.tie_embeddings
    assert (smollm2.bos_token, smollm2.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert config.eos_token_ids == (2,)


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_encoding_and_both_ways_of_decoding(smollm2: LoadedModel, text: str) -> None:
    token_ids = smollm2.tokenizer.encode(text).ids
    assert smollm2.tokenizer.decode(token_ids, skip_special_tokens=False) == text
    detokenizer = Detokenizer(smollm2.tokenizer)
    streamed = "".join(map(detokenizer.push, token_ids)) + detokenizer.flush()
    assert streamed == smollm2.tokenizer.decode(token_ids)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello world", ["Hello", "Ġworld"]),
        ("In 1999", ["In", "Ġ", "1", "9", "9", "9"]),
        ("3.14x20", ["3", ".", "1", "4", "x", "2", "0"]),
        ("  two", ["Ġ", "Ġtwo"]),
        ("don't", ["don", "'t"]),
        ("a<|im_end|>\n", ["a", "<|im_end|>", "Ċ"]),
    ],
)
def test_words_split_as_the_published_tokenizer_splits_them(
    smollm2: LoadedModel, text: str, tokens: list[str]
) -> None:
    assert smollm2.tokenizer.encode(text).tokens == tokens


def greedy(model: LoadedModel, prompt: Sequence[int], chunk_tokens: int, count: int) -> list[int]:
    kv = KVTensors(model.config, num_pages=4)
    tokens, start = list(prompt), 0
    while len(tokens) < len(prompt) + count and tokens[-1] not in model.config.eos_token_ids:
        stop = min(start + chunk_tokens, len(tokens))
        chunk = SequenceChunk(tokens[start:stop], start, [2, 0, 3, 1])
        logits = model.decoder.forward([chunk], kv)[0]
        start = stop
        if start == len(tokens):
            tokens.append(sample(logits, Sampling(temperature=0), start))
    return tokens[len(prompt) :]


def test_it_answers_a_question_the_same_however_it_is_chunked(smollm2: LoadedModel) -> None:
    assert smollm2.chat_template is not None
    environment = jinja2.Environment()
    text = environment.from_string(smollm2.chat_template).render(
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
    )
    prompt = smollm2.tokenizer.encode(text, add_special_tokens=False).ids
    whole = greedy(smollm2, prompt, chunk_tokens=len(prompt), count=12)
    assert smollm2.tokenizer.decode(whole) == "The capital of France is Paris."
    assert greedy(smollm2, prompt, chunk_tokens=7, count=12) == whole


def test_r70_memory_that_cannot_be_had_is_one_clear_error() -> None:
    script = """
import resource, torch
from moontide.engine_adapters.builtin.errors import ModelError
from moontide.engine_adapters.builtin.model import load_model
torch.zeros(8) @ torch.zeros(8)
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.RLIM_INFINITY))
try:
    load_model("smollm2")
except ModelError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "its weights take 513 MiB of memory on cpu, which cannot be had" in done.stdout


def test_loading_is_quick_and_holds_little_more_than_the_weights() -> None:
    """In a process of its own, so that the peak is loading's and nobody else's."""
    script = """
import resource, torch
from moontide.engine_adapters.builtin.model import load_model
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
model = load_model("smollm2")
print(peak() - before)
"""
    with within(30.0):  # about 3 s on a quiet machine
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=True
        )
    weights_bytes = 135_000_000 * 4
    assert int(done.stdout) < 1.7 * weights_bytes
