"""Every provider under the one conformance suite, see conformance.py."""

from conformance import Conformance


class TestLoopback(Conformance):
    provider = "loopback"


class TestShm(Conformance):
    provider = "shm"


class TestTcp(Conformance):
    provider = "tcp"
