"""Two hosts for tests: `Hosts` itself is the benchmark's.

    def test_sum_two_hosts():
        with Hosts(num_links=2) as hosts:
            assert run_ranks(check_sum, 4, hosts=hosts, backend="hccl") == ...

Ranks 0 and 1 then run on the first host, 2 and 3 on the second. `TWO_HOSTS` marks such tests: they
are nightly, and skipped where there can be no namespaces.
"""

import functools
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

try:
    from hccl_py.bench.namespaces import Hosts, NamespaceError, enter
except ModuleNotFoundError:  # the benchmarks may be left out: these tests are skipped then

    class NamespaceError(Exception):
        """There can be no hosts."""

    class Hosts:
        """Stands for the benchmark's."""

        def __init__(self, **_: object) -> None:
            raise NamespaceError("hccl_py.bench is not installed")

    def enter(name: str) -> None:
        """Never called: there are no names."""


T = TypeVar("T")

WITHOUT_NFT = shutil.which("nft") is None
NO_NFT = "there is no nft: apt-get install nftables"


def call_inside(name: str, function: Callable[[], T]) -> T:
    """Call a function in a namespace, on a thread of its own; this one stays where it is."""
    with ThreadPoolExecutor(1, initializer=enter, initargs=(name,)) as thread:
        return thread.submit(function).result()


def firewall(hosts: Hosts, host: int, *rules: str) -> None:
    """Have a host judge what comes in by these rules of nft.

    Without nft it skips the test that it is called in; one that calls it in a rank is `NEEDS_NFT`.
    """
    if WITHOUT_NFT:
        pytest.skip(NO_NFT)
    for words in (
        "add table inet test",
        "add chain inet test input { type filter hook input priority 0 ; }",
        *(f"add rule inet test input {rule}" for rule in rules),
    ):
        command = hosts.command(host, "nft", words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, f"{words}: {done.stderr}"


@functools.cache
def why_not() -> str | None:
    """Say why this process can make no namespaces; None if it can."""
    try:
        with Hosts(rates_mbit=[1000]):
            return None
    except NamespaceError as error:
        return str(error)


TWO_HOSTS = pytest.mark.nightly("hosts")
NEEDS_NFT = pytest.mark.skipif(WITHOUT_NFT, reason=NO_NFT)
