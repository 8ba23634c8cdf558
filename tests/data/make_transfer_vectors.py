"""Writes transfer_vectors.json beside this file: `python tests/data/make_transfer_vectors.py`.

Golden frames of the transfer wire, for other languages and versions. The tests never run this: they
compare the committed frames with the code and with a second decoder. A changed line is an
incompatible change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from moontide.transfer import wire
from moontide.transfer.wire import Header, Kind

TOKEN = b"golden token"
CHALLENGE = wire.Challenge(bytes(range(32)))
CLIENT = "node-0/11/" + "ab" * 16
SERVER = "node-1/12/" + "cd" * 16


def hello() -> wire.Hello:
    unproven = wire.Hello(1, 1, CLIENT, SERVER, bytes(range(32, 64)), b"")
    proof = wire.client_proof(TOKEN, CHALLENGE, unproven)
    return msgspec.structs.replace(unproven, proof=proof)


def handshake() -> Iterator[dict[str, Any]]:
    said = hello()
    welcome = wire.Welcome(1, wire.server_proof(TOKEN, CHALLENGE, said, 1))
    refusal = wire.Refusal("other_instance", "node-1 has restarted")
    for body in (CHALLENGE, said, welcome, refusal):
        frame = wire.encode_body(body)
        fields = msgspec.msgpack.decode(frame[wire.HEADER_BYTES :])
        plain = [{"hex": field.hex()} if isinstance(field, bytes) else field for field in fields]
        yield {"name": type(body).__name__, "body": plain, "frame": frame.hex()}


def transfers() -> Iterator[dict[str, Any]]:
    headers = [
        Header(Kind.READ, 3, 0x0102030405060708, 1 << 40, 98304),
        Header(Kind.WRITE, 2**32 - 1, 7, 0, 1),
        Header(Kind.DATA, 0, 2**64 - 1, 0, wire.MAX_PIECE_BYTES),
        Header(Kind.DONE, 0, 7, 0, 0),
    ]
    for header in headers:
        yield _transfer(header, wire.encode_header(header))
    reason = "unknown_segment: segment 9 is not registered here"
    frame = wire.encode_reason(5, reason)
    yield _transfer(Header(Kind.FAILED, 0, 5, 0, len(reason)), frame) | {"reason": reason}
    writes = [Header(Kind.WRITE, 3, 7, 1 << 40, 4096), Header(Kind.WRITE, 2**32 - 1, 8, 0, 1)]
    frame = wire.encode_writes(writes)  # without the payloads
    fields = [{**write._asdict(), "kind": int(write.kind)} for write in writes]
    yield _transfer(wire.decode_header(frame[: wire.HEADER_BYTES]), frame) | {"writes": fields}
    for header in (Header(Kind.DATAS, 0, 7, 2, 4097), Header(Kind.DONES, 0, 7, 2, 0)):
        yield _transfer(header, wire.encode_header(header))


def _transfer(header: Header, frame: bytes) -> dict[str, Any]:
    fields = {**header._asdict(), "kind": int(header.kind)}
    return {"name": header.kind.name, "header": fields, "frame": frame.hex()}


if __name__ == "__main__":
    about = f"frames of the transfer wire; the proofs are those of token {TOKEN!r}"
    rows = ",\n".join(json.dumps(case) for case in [*handshake(), *transfers()])
    target = Path(__file__).with_name("transfer_vectors.json")
    target.write_text(f'{{"about": {json.dumps(about)},\n"cases": [\n{rows}\n]}}\n')
