"""Tiny models shared by the tests here."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from moontide.engine_adapters.builtin.model import LoadedModel, load_model

from ...byte_tokenizer import byte_tokenizer as new_byte_tokenizer
from .tiny_models import MakeReference, Reference, random_tokens, save_random


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return new_byte_tokenizer("<s>", "</s>")


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
