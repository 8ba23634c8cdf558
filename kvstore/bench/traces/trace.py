"""Request traces in Mooncake's form (kvcache-ai/Mooncake, FAST25-release/traces): one JSON object a
line, with the chained hashes of a prompt's blocks of 512 tokens, the last one partly filled."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec

from ...errors import InvalidRequest

TRACE_BLOCK_TOKENS = 512
MAX_TRACE_REQUESTS = 1_000_000


class TraceRequest(msgspec.Struct, frozen=True):
    timestamp: int  # milliseconds
    input_length: int  # tokens
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> list[TraceRequest]:
    """In the file's order; `.gz` is unpacked. Raises InvalidRequest naming the line that is no
    request."""
    decoder = msgspec.json.Decoder(TraceRequest)
    open_file = gzip.open if path.suffix == ".gz" else open
    requests: list[TraceRequest] = []
    with open_file(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if len(requests) == MAX_TRACE_REQUESTS:
                raise InvalidRequest(
                    f"{path} has more than {MAX_TRACE_REQUESTS} requests: cut it to fewer"
                )
            try:
                requests.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                raise InvalidRequest(
                    f"{path}:{number} is no request of a trace: {error}"
                ) from error
    if not requests:
        raise InvalidRequest(f"{path} holds no request: at least one line is needed")
    return requests


def prefill_seconds(num_tokens: int, cached_tokens: int) -> float:
    """Of a 70B model on eight A800 (fitted to Fig. 14a of the Mooncake paper, FAST'25), loading
    what is cached included."""
    seconds = 1.146e-4 * (num_tokens - cached_tokens)
    seconds += 7.19e-10 * (num_tokens**2 - cached_tokens**2)
    return seconds + (0.06 + cached_tokens * 327680 / 128e9 if cached_tokens else 0.0)
