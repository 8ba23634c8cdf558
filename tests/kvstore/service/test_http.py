from __future__ import annotations

import contextlib
import http.client
import json
import socket
from typing import Any

import pytest

from moontide.kvstore.errors import Conflict, InvalidRequest
from moontide.kvstore.service import HostPort, Limits, bind_listener, bound_address

from ...waiting import wait_until, within
from .conftest import TOKEN, Serve, Served

JSON = {"Content-Type": "application/json"}


def ask(
    served: Served,
    method: str,
    path: str,
    body: object = None,
    *,
    raw: bytes | None = None,
    token: str | None = TOKEN,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(*served.address, timeout=10)
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    if body is not None:
        raw = json.dumps(body).encode()
        sent = {**JSON, **sent}
    try:
        connection.request(method, path, raw, sent)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    is_json = response.headers.get("Content-Type", "").startswith("application/json")
    return response.status, json.loads(text) if is_json else text.decode(), response


def code_of(answer: Any) -> str:
    assert set(answer["error"]) == {"code", "message", "retryable"}
    return str(answer["error"]["code"])


def test_a_good_request_is_decoded_and_answered(serve: Serve) -> None:
    served = serve()
    status, answer, _ = ask(served, "POST", "/v1/echo?limit=7&exact=true", {"text": "abc"})
    assert (status, answer) == (200, {"length": 3, "limit": 7})
    assert ask(served, "GET", "/v1/items/a%2Fb")[1] == {"length": 3, "limit": 0}
    assert ask(served, "GET", "/healthz", token=None)[:2] == (200, "ok")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/echo", {"text": 3}, "text"),
        ("/v1/echo", {"text": "a", "numbers": [1, -1]}, "numbers[1]"),
        ("/v1/echo", {"txet": "a"}, "txet"),
        ("/v1/echo", {}, "text"),
        ("/v1/echo", ["a"], "object"),
        ("/v1/echo?limit=0", {"text": "a"}, "limit"),
        ("/v1/echo?limit=x", {"text": "a"}, "limit"),
        ("/v1/echo?limti=3", {"text": "a"}, "limti"),
        ("/v1/echo?limit=3&limit=4", {"text": "a"}, "limit"),
    ],
)
def test_a_bad_field_is_a_400_that_names_it(
    serve: Serve, path: str, body: object, named: str
) -> None:
    status, answer, _ = ask(serve(), "POST", path, body)
    assert status == 400
    assert code_of(answer) == "invalid_request"
    assert named in answer["error"]["message"]


@pytest.mark.parametrize(
    "raw", [b"{", b"", b"\xff\xfe", b"[" * 100_000, b'{"text": "a"} x', b"nan"]
)
def test_what_is_no_json_is_a_400(serve: Serve, raw: bytes) -> None:
    status, answer, _ = ask(serve(), "POST", "/v1/echo", raw=raw, headers=JSON)
    assert status == 400
    assert code_of(answer) in ("invalid_json", "invalid_request")


def test_a_body_that_is_not_compressed_as_told_is_a_400(serve: Serve) -> None:
    headers = JSON | {"Content-Encoding": "gzip"}
    status, answer, _ = ask(serve(), "POST", "/v1/echo", raw=b'{"text": "abc"}', headers=headers)
    assert (status, code_of(answer)) == (400, "bad_request")
    assert "gzip" in answer["error"]["message"]


def test_a_body_of_another_type_is_a_415(serve: Serve) -> None:
    served = serve()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, answer, _ = ask(served, "POST", "/v1/echo", raw=b"text=a", headers=form)
    assert (status, code_of(answer)) == (415, "not_json")


def test_an_optional_body_may_be_absent(serve: Serve) -> None:
    served = serve()
    assert ask(served, "POST", "/v1/clear")[:2] == (200, {"length": 0, "limit": 0})
    assert ask(served, "POST", "/v1/clear", {"dry_run": True})[1]["length"] == 1
    assert ask(served, "POST", "/v1/echo")[0] == 415


def test_unknown_paths_and_methods_are_typed_too(serve: Serve) -> None:
    served = serve()
    status, answer, _ = ask(served, "GET", "/nope")
    assert (status, code_of(answer)) == (404, "not_found")
    status, answer, response = ask(served, "PUT", "/v1/echo", {"text": "a"})
    assert (status, code_of(answer)) == (405, "method_not_allowed")
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize(
    ("kind", "status", "code", "retryable"),
    [
        ("invalid", 400, "invalid_request", False),
        ("conflict", 409, "conflict", False),
        ("busy", 503, "busy", True),
        ("bug", 500, "internal", False),
    ],
)
def test_errors_of_handlers_get_their_status(
    serve: Serve, kind: str, status: int, code: str, retryable: bool
) -> None:
    got, answer, response = ask(serve(), "GET", f"/v1/fault?kind={kind}")
    assert (got, code_of(answer), answer["error"]["retryable"]) == (status, code, retryable)
    assert ("Retry-After" in response.headers) == retryable
    assert "secret detail" not in answer["error"]["message"]


# -- who may ask ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/echo"),
        ("POST", "/v1/clear"),
        ("GET", "/v1/items/a"),
        ("GET", "/v1/fault"),
        ("GET", "/v1/events"),
    ],
)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], "é"])
def test_r60_every_protected_route_asks_for_the_token(
    serve: Serve, method: str, path: str, token: str | None
) -> None:
    headers = (
        {} if token is None else {"Authorization": f"Bearer {token}".encode().decode("latin-1")}
    )
    status, answer, response = ask(serve(), method, path, token=None, headers=headers)
    assert (status, code_of(answer)) == (401, "unauthorized")
    assert response.headers["WWW-Authenticate"] == "Bearer"


def test_api_keys_protect_only_when_set(serve: Serve) -> None:
    assert ask(serve(), "GET", "/v1/models", token=None)[0] == 200
    keyed = serve(api_keys=["key-1", "key-2"])
    assert ask(keyed, "GET", "/v1/models", token=None)[0] == 401
    assert ask(keyed, "GET", "/v1/models", token="key-2")[0] == 200
    assert ask(keyed, "GET", "/v1/models", token=TOKEN)[0] == 200
    assert ask(keyed, "GET", "/v1/items/a", token="key-2")[0] == 401


def test_metrics_need_no_token_on_loopback(serve: Serve) -> None:
    assert ask(serve(), "GET", "/metrics", token=None)[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:7421", 200),
        ("10.0.0.9", 200),
        ("store.example:7421", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("", 403),
    ],
)
def test_a_foreign_host_header_is_refused(serve: Serve, host: str, status: int) -> None:
    served = serve(hosts=["store.example"])
    assert ask(served, "GET", "/healthz", headers={"Host": host})[0] == status
    assert ask(served, "GET", "/v1/items/a", headers={"Host": host})[0] == status


def test_a_foreign_origin_is_refused(serve: Serve) -> None:
    served = serve()
    for origin in ("http://evil.example", "null", served.url.replace("http", "https")):
        status, answer, _ = ask(served, "GET", "/v1/items/a", headers={"Origin": origin})
        assert (status, code_of(answer)) == (403, "origin_refused")
    assert ask(served, "GET", "/v1/items/a", headers={"Origin": served.url})[0] == 200


# -- limits ---------------------------------------------------------------------------


def test_r68_a_body_over_the_limit_is_a_413_whether_announced_or_not(serve: Serve) -> None:
    served = serve(limits=Limits(body_bytes=1000, shutdown_seconds=0.2))
    status, answer, _ = ask(served, "POST", "/v1/echo", {"text": "x" * 1000})
    assert (status, code_of(answer)) == (413, "body_too_large")
    assert "1000" in answer["error"]["message"]
    with socket.create_connection(served.address, timeout=10) as raw:
        raw.sendall(_head("POST", "/v1/echo", "Transfer-Encoding: chunked"))
        raw.sendall(b"400\r\n" + b"x" * 0x400 + b"\r\n")
        assert _status(raw) == 413
        _expect_closed(raw)
    assert ask(served, "POST", "/v1/echo", {"text": "x"})[0] == 200


def test_r68_a_client_that_stops_sending_gets_a_408(serve: Serve) -> None:
    served = serve(limits=Limits(body_seconds=0.2, shutdown_seconds=0.2))
    with socket.create_connection(served.address, timeout=10) as raw:
        raw.sendall(_head("POST", "/v1/echo", "Content-Length: 100") + b"{")
        assert _status(raw) == 408
        _expect_closed(raw)
    assert ask(served, "POST", "/v1/echo", {"text": "x"})[0] == 200


@pytest.mark.parametrize(
    "lines",
    [
        b"GET /healthz HTTP/1.1\r\nHostlocalhost\r\n\r\n",
        b"POST /v1/echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
    ],
)
def test_r68_what_is_no_http_is_told_so_and_leaves_no_traceback(
    serve: Serve, lines: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Anyone who reaches the port could fill the disk with them."""
    served = serve()
    with socket.create_connection(served.address, timeout=10) as raw:
        raw.sendall(lines)
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"400"
    assert code_of(json.loads(body)) == "bad_request"
    assert not [record for record in caplog.records if record.exc_info]


def test_r68_a_client_that_never_ends_its_headers_is_cut_off(serve: Serve) -> None:
    served = serve(limits=Limits(header_seconds=0.2, shutdown_seconds=0.2))
    with socket.create_connection(served.address, timeout=10) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        _expect_closed(raw)
    with socket.create_connection(served.address, timeout=10) as silent:
        _expect_closed(silent)
    assert ask(served, "GET", "/healthz")[0] == 200


def test_requests_over_the_bound_are_told_to_come_back(serve: Serve) -> None:
    served = serve(limits=Limits(in_flight=1, shutdown_seconds=0.2))
    with socket.create_connection(served.address, timeout=10) as raw:
        raw.sendall(_head("GET", "/v1/wait"))
        assert served.witness.entered.wait(5)
        status, answer, _ = ask(served, "GET", "/v1/items/a")
        assert (status, code_of(answer)) == (503, "busy")
    assert served.witness.cancelled.wait(5)
    wait_until(lambda: ask(served, "GET", "/v1/items/a")[0] == 200)


def test_connections_over_the_bound_are_refused(serve: Serve) -> None:
    served = serve(limits=Limits(connections=2, shutdown_seconds=0.2))
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            held = stack.enter_context(socket.create_connection(served.address, timeout=10))
            held.sendall(_head("GET", "/healthz"))
            assert _status(held) == 200
        with socket.create_connection(served.address, timeout=10) as third:
            _expect_closed(third)
    wait_until(lambda: _answers(served))


# -- streams, life cycle --------------------------------------------------------------


def test_a_stream_sends_events_and_keep_alives_and_ends_with_its_client(serve: Serve) -> None:
    served = serve()
    with socket.create_connection(served.address, timeout=10) as raw:
        raw.sendall(_head("GET", "/v1/events"))
        got = b""
        while got.count(b": keep-alive") < 2:
            got += raw.recv(4096)
        assert b'event: first\ndata: {"length":1}\n\n' in got
        assert b"text/event-stream" in got
    assert served.witness.streams_ended.wait(5)


def test_shutdown_ends_streams_and_frees_the_port(serve: Serve) -> None:
    served = serve()
    with socket.create_connection(served.address, timeout=10) as raw:
        raw.sendall(_head("GET", "/v1/events"))
        assert raw.recv(4096)
        with within(5.0):
            served.close()
            while raw.recv(4096):
                pass
    assert served.witness.streams_ended.is_set()
    bind_listener(served.address).close()


def test_a_handler_is_cancelled_when_its_client_goes_away(serve: Serve) -> None:
    served = serve()
    with socket.create_connection(served.address, timeout=10) as raw:
        raw.sendall(_head("GET", "/v1/wait"))
        assert served.witness.entered.wait(5)
    assert served.witness.cancelled.wait(5)


def test_a_taken_port_is_named() -> None:
    with bind_listener(HostPort("127.0.0.1", 0)) as listener:
        address = bound_address(listener)
        assert address.port != 0
        with pytest.raises(Conflict, match=f"{address}: the port is taken"):
            bind_listener(address)


def test_a_host_of_another_machine_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"192\.0\.2\.1:0"):
        bind_listener(HostPort("192.0.2.1", 0))


def _head(method: str, path: str, *headers: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {TOKEN}",
        "Content-Type: application/json",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def _status(raw: socket.socket) -> int:
    line = b""
    while not line.endswith(b"\r\n"):
        piece = raw.recv(1)
        assert piece, line
        line += piece
    return int(line.split()[1])


def _expect_closed(raw: socket.socket) -> None:
    try:
        while raw.recv(65536):
            pass
    except ConnectionResetError:
        pass


def _answers(served: Served) -> bool:
    try:
        return ask(served, "GET", "/healthz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False
