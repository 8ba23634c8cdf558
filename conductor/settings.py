"""Settings of `moontide conductor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from moontide.kvstore.service import HostPort, Size

Seconds = Annotated[float, Meta(gt=0)]


class ConductorSettings(Struct, frozen=True, kw_only=True):
    """One Conductor. Raises ValueError for a membership that cannot have members."""

    cluster: Annotated[
        str,
        Meta(
            description="Membership to find workers and stores in: file:DIRECTORY (one machine) or "
            "etcd://HOST:PORT[,HOST:PORT]"
        ),
    ]
    listen: Annotated[HostPort, Meta(description="OpenAI API, status and metrics")] = HostPort(
        "127.0.0.1", 7400
    )
    ttft_slo: Annotated[
        Seconds | None,
        Meta(
            description="Seconds to the first token: a request that no worker is expected to "
            "answer in that time is refused at once (429); none: never",
        ),
    ] = None
    tbt_slo: Annotated[
        Seconds | None,
        Meta(
            description="Seconds between tokens: a busy worker that is slower takes no more "
            "requests; none: never",
        ),
    ] = None
    api_keys_file: Annotated[
        Path | None,
        Meta(
            description="File with one API key a line (# starts a comment), one of which /v1 then "
            "requires; none: /v1 is open"
        ),
    ] = None
    max_in_flight: Annotated[
        int, Meta(ge=1, le=100_000, description="Requests answered at once; more get 429")
    ] = 1024
    max_queue: Annotated[
        int,
        Meta(ge=0, le=100_000, description="Requests a worker may have beyond those it runs"),
    ] = 256
    max_body: Annotated[Size, Meta(ge=1024, description="Largest request body; larger get 413")] = (
        Size(4 << 20)
    )
    max_index_blocks: Annotated[
        int,
        Meta(ge=1, le=1 << 30, description="Blocks the prefix index holds, about 110 bytes each"),
    ] = 4_000_000
    tokenizer_threads: Annotated[
        int, Meta(ge=1, le=256, description="Threads that render, tokenise and hash prompts")
    ] = 2
    first_token_timeout: Annotated[
        Seconds,
        Meta(
            description="Seconds a request waits for its first token while its worker gives "
            "nobody any",
        ),
    ] = 300.0
    token_timeout: Annotated[
        Seconds,
        Meta(
            description="Seconds a stream waits for its next token while its worker gives nobody "
            "any; then another worker goes on with it"
        ),
    ] = 60.0
    request_timeout: Annotated[
        Seconds, Meta(description="Seconds a request may take in all; then it ends with an error")
    ] = 3600.0

    def __post_init__(self) -> None:
        if self.cluster == "memory":
            raise ValueError(
                "cluster is memory, in which no other process can register: give file:DIRECTORY "
                "or etcd://HOST:PORT"
            )
