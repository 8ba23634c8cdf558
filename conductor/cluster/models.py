"""What a worker tells of its model (`GET /v1/tokenizer`), checked: enough to render, tokenise and
key a prompt as the worker would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from tokenizers import Tokenizer

from moontide.kvstore import BlockKey, Group, KVLayout, Namespace, block_keys
from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.membership import WorkerRecord

from ..template import ChatTemplate, TemplateRefused
from .token_bound import TokenBound, token_bound

MAX_TOKENIZER_BYTES = 128 << 20


class ModelRefused(Exception):
    """What the worker tells of its model contradicts itself or its record."""


class NamespaceFields(msgspec.Struct, frozen=True, kw_only=True):
    weights_id: str
    tokenizer_digest: str
    block_tokens: int
    rope_scaling: str = ""
    adapter_digest: str = ""
    salt: str = ""


class ModelDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the worker's `GET /v1/tokenizer`."""

    model: str
    tokenizer: str  # tokenizer.json
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    digest: str
    context_tokens: int
    block_tokens: int
    namespace: str  # digest, hex
    namespace_fields: NamespaceFields
    layout: list[Group]


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a set of equal workers serves it. Methods are thread-safe and slow: off the
    loop."""

    name: str
    context_tokens: int
    namespace: Namespace
    tokenizer: Tokenizer
    template: ChatTemplate | None
    token_bound: TokenBound | None = None

    def fewest_tokens(self, text: str) -> int:
        """How many tokens `text` has at least; quick."""
        return 0 if self.token_bound is None else self.token_bound.fewest(text)

    def encode_text(self, text: str) -> list[int]:
        """Raw text, with what the tokenizer itself adds, as the worker would encode it."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def encode_rendered(self, text: str) -> list[int]:
        """Text of a chat template, which writes all special tokens itself."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def keys(self, token_ids: Sequence[int]) -> list[BlockKey]:
        return block_keys(self.namespace, token_ids)


@dataclass(frozen=True, slots=True)
class ModelKey:
    """Workers that agree in these take each other's requests, and go on with each other's answers.
    How long a context they have room for may differ: what they all have room for counts."""

    name: str
    namespace: str
    tokenizer_digest: str

    @classmethod
    def of(cls, record: WorkerRecord) -> ModelKey:
        return cls(record.model, record.namespace, record.tokenizer_digest)


def load_model(data: bytes, record: WorkerRecord) -> Model:
    """Parses what the worker of `record` told. Raises ModelRefused, naming both values."""
    try:
        document = msgspec.json.decode(data, type=ModelDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidRequest) as error:
        raise ModelRefused(f"worker {record.id} describes its model wrongly: {error}") from error
    namespace = _namespace(document, record)
    told = {
        "model": (document.model, record.model),
        "tokenizer digest": (document.digest, record.tokenizer_digest),
        "context_tokens": (document.context_tokens, record.context_tokens),
        "block_tokens": (namespace.block_tokens, record.block_tokens),
        "namespace": (namespace.digest.hex(), record.namespace),
    }
    for name, (now, registered) in told.items():
        if now != registered:
            raise ModelRefused(
                f"worker {record.id} registered {name} {registered!r} and tells {now!r}"
            )
    try:
        tokenizer = Tokenizer.from_str(document.tokenizer)
    except Exception as error:  # the tokenizers package raises nothing narrower
        raise ModelRefused(f"worker {record.id} sent no tokenizer.json: {error}") from error
    return Model(
        name=document.model,
        context_tokens=document.context_tokens,
        namespace=namespace,
        tokenizer=tokenizer,
        template=_template(document, record),
        token_bound=token_bound(document.tokenizer),
    )


def _namespace(document: ModelDocument, record: WorkerRecord) -> Namespace:
    fields = document.namespace_fields
    try:
        return Namespace(
            weights_id=fields.weights_id,
            layout=KVLayout(tuple(document.layout)),
            tokenizer_digest=fields.tokenizer_digest,
            block_tokens=fields.block_tokens,
            rope_scaling=fields.rope_scaling,
            adapter_digest=fields.adapter_digest,
            salt=fields.salt,
        )
    except InvalidRequest as error:
        raise ModelRefused(f"worker {record.id} describes its KV wrongly: {error}") from error


def _template(document: ModelDocument, record: WorkerRecord) -> ChatTemplate | None:
    if document.chat_template is None:
        return None
    try:
        return ChatTemplate(
            document.chat_template,
            bos_token=document.bos_token or "",
            eos_token=document.eos_token or "",
        )
    except TemplateRefused as error:
        raise ModelRefused(f"worker {record.id}: {error}") from error
