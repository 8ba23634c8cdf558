"""The way to the store daemon, opened in a thread of its own: a worker starts, and serves, whether
the daemon is there or not."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from moontide.kvstore import BlockStore, Namespace, StoreClient, connect
from moontide.kvstore.errors import StoreError, StoreUnavailable
from moontide.transfer.errors import TransferError
from moontide.transfer.types import Instance

from .kv_jobs import KvJobs

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_CHECK_SECONDS = 1.0


class StoreLink(Protocol):
    """Where the engine finds its store."""

    def store(self) -> KvJobs:
        """Never waits. Raises StoreUnavailable while there is none."""

    def daemon(self) -> str:
        """Instance of the daemon seen last; empty before the first."""

    def wait(self, seconds: float) -> None:
        """Until a daemon was seen, at most so long. Returns at once where none is expected."""

    def close(self) -> None: ...


class NoStore:
    """For a worker that is to run without a store."""

    def store(self) -> KvJobs:
        raise StoreUnavailable("this worker runs without a store")

    def daemon(self) -> str:
        return ""

    def wait(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class DaemonLink:
    """Connects until it works, then looks once a second which daemon answers."""

    def __init__(
        self, address: str, namespace: Namespace, instance: Instance, *, replicas: int
    ) -> None:
        """`replicas` of each block that is stored are wanted in the cluster."""
        self._address = address
        self._namespace = namespace
        self._instance = instance
        self._replicas = replicas
        self._daemon = ""
        self._told: type[Exception] | None = None
        self._client: StoreClient | None = None
        self._store: BlockStore | None = None
        self._attached = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-link", daemon=True)
        self._thread.start()

    def store(self) -> KvJobs:
        if self._store is None:
            raise StoreUnavailable(f"no store at {self._address} yet")
        return self._store

    def daemon(self) -> str:
        return self._daemon

    def wait(self, seconds: float) -> None:
        self._attached.wait(seconds)

    def close(self) -> None:
        self._closing.set()
        if self._client is not None:
            self._client.close()
        self._thread.join(_CONNECT_SECONDS + _CHECK_SECONDS)

    def _run(self) -> None:
        wait = 0.0
        while not self._closing.wait(wait):
            wait = _CHECK_SECONDS
            try:
                self._look()
            except (StoreError, TransferError, OSError) as error:
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Once for each way of failing."""
        if type(error) is not self._told:
            self._told = type(error)
            logger.warning("store_away address=%s error=%s", self._address, error)

    def _look(self) -> None:
        if self._client is None:
            self._client = connect(
                self._address, timeout_s=_CONNECT_SECONDS, instance=self._instance
            )
        if self._store is None:
            self._store = self._client.kv(
                self._namespace, replicas=self._replicas, timeout_s=_CONNECT_SECONDS
            )
        daemon = str(self._client.stats(timeout_s=_CHECK_SECONDS)["instance"])
        if daemon != self._daemon:
            self._daemon = daemon
            self._attached.set()
            self._told = None
            logger.info("store_attached address=%s instance=%s", self._address, daemon)
