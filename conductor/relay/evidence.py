"""What the last chunk of a split answer says of its two workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..protocol import PromptTokensDetails
from ..upstream import Chunk

_EVIDENCE = msgspec.json.Decoder(dict[str, msgspec.Raw])


def of_both(decoded: Chunk, prefilled: Chunk | None) -> Chunk:
    """The decode worker's last chunk, with what the prefill worker reused and when it was done:
    the decode worker itself counts all that was handed over as reused. None: it did not tell."""
    assert decoded.usage is not None
    details, ended_at = PromptTokensDetails(), msgspec.Raw(b"null")
    if prefilled is not None and prefilled.usage is not None:
        details = prefilled.usage.prompt_tokens_details
        ended_at = _evidence(prefilled).get("prefill_end_at", ended_at)
    usage = msgspec.structs.replace(decoded.usage, prompt_tokens_details=details)
    evidence = {**_evidence(decoded), "prefill_end_at": ended_at}
    return msgspec.structs.replace(decoded, usage=usage, moontide=_encoded(evidence))


def signed(chunk: Chunk, *, prefill: str, decode: str) -> Chunk:
    """With both workers' names."""
    names = {"prefill_worker": prefill, "decode_worker": decode}
    return msgspec.structs.replace(chunk, moontide=_encoded({**_evidence(chunk), **names}))


def _evidence(chunk: Chunk) -> dict[str, msgspec.Raw]:
    """As the worker gave it; whatever is no object counts for none."""
    if isinstance(chunk.moontide, msgspec.UnsetType):
        return {}
    try:
        return _EVIDENCE.decode(chunk.moontide)
    except msgspec.DecodeError:
        return {}


def _encoded(evidence: Mapping[str, msgspec.Raw | str]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(evidence))
