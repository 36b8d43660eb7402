"""Every provider under the one conformance suite, see conformance.py."""

from conformance import Conformance, two_gigabytes

__all__ = ["two_gigabytes"]


class TestLoopback(Conformance):
    provider = "loopback"


class TestShm(Conformance):
    provider = "shm"


class TestTcp(Conformance):
    provider = "tcp"


class TestZmq(Conformance):
    provider = "zmq"
