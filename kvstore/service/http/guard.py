"""Who may ask: Host and Origin, then the bearer token."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web

from .errors import HttpError
from .routes import Auth


@dataclass(frozen=True, slots=True)
class Guard:
    """Refuses a request before its body is read. A Host header that names neither an address nor
    this service is refused, so a page of a foreign site cannot reach it under its own name."""

    token: str | None
    api_keys: tuple[str, ...]
    hosts: frozenset[str]

    @classmethod
    def create(
        cls, *, token: str | None, api_keys: Collection[str], hosts: Collection[str]
    ) -> Guard:
        known = {"localhost", socket.gethostname(), *hosts}
        return cls(token, tuple(api_keys), frozenset(name.lower() for name in known))

    def check(self, request: web.Request, auth: Auth) -> None:
        """Raises HttpError 400, 401 or 403."""
        self._check_host(request)
        self._check_origin(request)
        if not self._admits(request, auth):
            raise HttpError(
                401,
                "unauthorized",
                "send the token as `Authorization: Bearer TOKEN` (it is in the --token-file)",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_host(self, request: web.Request) -> None:
        values = request.headers.getall("Host", [])
        if len(values) != 1:
            raise HttpError(400, "bad_host", f"expected one Host header, got {len(values)}")
        name = _host_name(values[0])
        if name is None or not (_is_address(name) or name in self.hosts):
            raise HttpError(
                403,
                "host_refused",
                f"Host {values[0][:200]!r} is not this service; allow a name with --allowed-hosts",
            )

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if origin is None:
            return
        if origin.lower() != f"{request.scheme}://{request.host}".lower():
            raise HttpError(403, "origin_refused", f"Origin {origin[:200]!r} is another site")

    def _admits(self, request: web.Request, auth: Auth) -> bool:
        if auth is Auth.OPEN or (auth is Auth.API_KEY and not self.api_keys):
            return True
        if auth is Auth.LOOPBACK and _is_loopback(request.remote):
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        accepted = [self.token] if self.token else []
        if auth is Auth.API_KEY:
            accepted += self.api_keys
        matches = [_equal(given.strip(), secret) for secret in accepted]
        return any(matches)


def _equal(given: str, secret: str) -> bool:
    """Constant-time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())


def _host_name(header: str) -> str | None:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower() or None
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(remote: str | None) -> bool:
    try:
        return remote is not None and ipaddress.ip_address(remote).is_loopback
    except ValueError:
        return False
