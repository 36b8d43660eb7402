"""What tests of whole jobs share."""

from __future__ import annotations

import socket

import pytest

from hccl_py.schedulers.ports import free_port


@pytest.fixture
def port() -> int:
    """Find a port for rank 0's store, with a free one above."""
    while True:
        found = free_port("127.0.0.1")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", found + 1)):
                return found
