"""The admin REST as the tests call it: with and without the token."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

TIMEOUT_SECONDS = 10.0


class Response(NamedTuple):
    status: int
    body: Any


class Admin:
    """`token` None: unauthenticated."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self._token = token

    def call(self, method: str, path: str, body: object = None) -> Response:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None
        if method in ("POST", "PATCH"):
            headers["Content-Type"] = "application/json"
            data = json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                return Response(response.status, _decode(response.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, _decode(error.read()))

    def get(self, path: str) -> Any:
        status, body = self.call("GET", path)
        assert status == 200, body
        return body

    def post(self, path: str, body: object = None) -> Any:
        status, answer = self.call("POST", path, body)
        assert status == 200, answer
        return answer

    def patch(self, path: str, body: object) -> Any:
        status, answer = self.call("PATCH", path, body)
        assert status == 200, answer
        return answer

    def stats(self) -> Any:
        return self.get("/v1/stats")

    def check_at_rest(self) -> None:
        """Invariant 5: nothing pinned, in flight or in quarantine, and the accounts agree."""
        report = self.post("/v1/audit")
        assert report["differences"] == []
        assert (report["pins"], report["in_flight"], report["quarantined"]) == (0, 0, 0)


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()
