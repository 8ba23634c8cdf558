"""The admin REST from the other side: one blocking call at a time, errors as this package's."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import ERRORS_BY_CODE, InvalidRequest, StoreError, StoreUnavailable
from ..service import ErrorBody, load_or_create_token

AnswerT = TypeVar("AnswerT")
MAX_ANSWER_BYTES = 64 << 20
_URL = re.compile(r"https?://[!-~]+")


class AdminClient:
    """Calls one store daemon's admin REST with the cluster token."""

    def __init__(self, url: str, token: str, *, timeout_s: float) -> None:
        """Raises InvalidRequest when that is no URL."""
        if _URL.fullmatch(url) is None:
            raise InvalidRequest(f"{url[:200]!r} is no URL of a store: write http://HOST:PORT")
        self._url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        # Asked directly: a proxy must not see the token, and knows nothing of loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, query: dict[str, str], answer: type[AnswerT]) -> AnswerT:
        """Raises the StoreError the daemon answered, or StoreUnavailable."""
        return self._call("GET", _asked(path, query), None, answer)

    def delete(self, path: str, query: dict[str, str], answer: type[AnswerT]) -> AnswerT:
        return self._call("DELETE", _asked(path, query), None, answer)

    def post(self, path: str, body: object, answer: type[AnswerT]) -> AnswerT:
        return self._call("POST", path, msgspec.json.encode(body), answer)

    def patch(self, path: str, body: object, answer: type[AnswerT]) -> AnswerT:
        return self._call("PATCH", path, msgspec.json.encode(body), answer)

    def _call(self, method: str, path: str, body: bytes | None, answer: type[AnswerT]) -> AnswerT:
        try:
            request = urllib.request.Request(
                self._url + path,
                data=body,
                method=method,
                headers={
                    "Authorization": f"Bearer {self._token}",
                    "Content-Type": "application/json",
                },
            )
            with self._opener.open(request, timeout=self._timeout_s) as response:
                data = response.read(MAX_ANSWER_BYTES)
            return msgspec.json.decode(data, type=answer)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except HTTPException as error:
            raise StoreUnavailable(
                f"what answers at {self._url} speaks no HTTP: give the store's --admin address"
            ) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise StoreUnavailable(
                f"no store answers at {self._url}: {reason}; is `moontide store` running there, "
                "and is --url its --admin address?"
            ) from error


def _asked(path: str, query: dict[str, str]) -> str:
    text = urllib.parse.urlencode(query)
    return f"{path}?{text}" if text else path


def read_token(path: Path) -> str:
    """The token of an existing file: a client never makes one. Raises InvalidRequest,
    AccessDenied."""
    if not path.exists():
        raise InvalidRequest(
            f"token file {path} does not exist: give the store's with --token-file"
        )
    return load_or_create_token(path)


def _refusal(error: urllib.error.HTTPError) -> StoreError:
    try:
        detail = msgspec.json.decode(error.read(1 << 20), type=ErrorBody).error
    except msgspec.DecodeError:
        return StoreUnavailable(f"{error.url} answered {error.code} {error.reason}: not a store")
    others = InvalidRequest if error.code == HTTPStatus.BAD_REQUEST else StoreError
    return ERRORS_BY_CODE.get(detail.code, others)(detail.message)
