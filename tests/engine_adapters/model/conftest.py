"""One thread, a byte tokenizer, and tiny models shared by the tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from moontide.engine_adapters.builtin.model import LoadedModel, load_model

from .tiny_models import MakeReference, Reference, random_tokens, save_random


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """One token a byte, then <s> and </s>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    return tokenizer


@pytest.fixture(scope="session")
def make_reference(
    tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Tokenizer
) -> MakeReference:
    """Builds and saves one of ARCHITECTURES; equal arguments give the same one."""
    made: dict[str, Reference] = {}

    def make(name: str) -> Reference:
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            made[name] = Reference(path, save_random(name, path))
            byte_tokenizer.save(str(path / "tokenizer.json"))
        return made[name]

    return make


@pytest.fixture(scope="session")
def tiny(make_reference: MakeReference) -> LoadedModel:
    return load_model(str(make_reference("llama").path))


@pytest.fixture(scope="session")
def token_ids() -> list[int]:
    return random_tokens(150, seed=7)
