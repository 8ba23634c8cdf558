"""From an address to a membership."""

from __future__ import annotations

from pathlib import Path

import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.membership import FileMembership, MemoryMembership, open_membership


@pytest.mark.parametrize("address", ["", "file:", "files:/x", "memory:x", "/x", "etcd:h:1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="file:DIRECTORY"):
        open_membership(address)


def test_addresses_open_their_kind(tmp_path: Path) -> None:
    assert isinstance(open_membership("memory"), MemoryMembership)
    assert isinstance(open_membership(f"file:{tmp_path}/c"), FileMembership)
