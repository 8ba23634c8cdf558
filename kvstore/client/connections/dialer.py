"""Connecting, and connecting again: one attempt after another, further and further apart."""

from __future__ import annotations

import random
import threading

from moontide.transfer.errors import TransferError

from ...errors import AccessDenied, InvalidRequest, StoreError, StoreUnavailable
from ..deadline import Deadline
from .attachment import Attachment, Attachments
from .connection import Connection, Identity, open_connection
from .writes import RunningWrites

FIRST_WAIT_SECONDS = 0.01
LONGEST_WAIT_SECONDS = 0.5
LONGEST_GREETING_SECONDS = 5.0


class Dialer:
    """Opens connections for one client; thread-safe. `stop` ends every wait."""

    def __init__(self, identity: Identity, attachments: Attachments, writes: RunningWrites) -> None:
        self.identity = identity
        self._attachments = attachments
        self._writes = writes
        self._stopped = threading.Event()

    def connect(self, deadline: Deadline) -> tuple[Connection, Attachment]:
        """Tries until it works. Raises StoreUnavailable at the deadline; AccessDenied and
        InvalidRequest at once, since trying again does not cure them."""
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                return self._connect_once(deadline)
            except (AccessDenied, InvalidRequest):
                raise
            except (StoreError, TransferError, OSError) as error:
                last = error
            pause = wait * random.uniform(0.75, 1.25)
            if deadline.remaining() <= pause or self._stopped.wait(pause):
                self._stopped.wait(deadline.remaining())
                raise StoreUnavailable(
                    f"no store at {self.identity.address} within {deadline.timeout_s:g} s: {last}"
                ) from last
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _connect_once(self, deadline: Deadline) -> tuple[Connection, Attachment]:
        self._writes.wait_quiesced(deadline)
        left = deadline.check(f"connecting to {self.identity.address}")
        connection = open_connection(self.identity, Deadline(min(left, LONGEST_GREETING_SECONDS)))
        try:
            attachment = self._attachments.adopt(connection)
        except BaseException:
            connection.close()
            raise
        self._writes.begin_connection(connection.serial)
        return connection, attachment

    def hang_up(self, connection: Connection) -> None:
        """Closes a connection made here."""
        self._writes.end_connection(connection.serial)
        connection.close()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()
