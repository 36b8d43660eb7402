"""Who shares a node."""

import os
import socket
from dataclasses import replace

import pytest

from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Identity, group_by_node

HERE = Identity("host", 1, "boot", 4026531840, "")


def test_identity_of_this_process_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_NODE_ID", "node-7")
    identity = Identity.of_this_process()
    assert (identity.host, identity.pid) == (socket.gethostname(), os.getpid())
    assert identity.node_id == "node-7"
    assert Identity.of_this_process("other").node_id == "other"
    assert len(identity.boot_id) == 36


def test_identity_overlong_node_id_is_rejected() -> None:
    with pytest.raises(BootstrapError, match="HCCL_NODE_ID is longer than 256 bytes"):
        Identity.of_this_process("x" * 257)


@pytest.mark.parametrize(
    "change", [{"boot_id": "other"}, {"network_namespace": 5}, {"node_id": "b"}], ids=str
)
def test_group_by_node_any_difference_that_matters_separates(change: dict[str, object]) -> None:
    other = replace(HERE, **change)
    assert group_by_node([HERE, other, HERE]) == ((0, 2), (1,))


def test_group_by_node_host_name_and_pid_do_not_separate() -> None:
    assert group_by_node([HERE, replace(HERE, host="container", pid=2)]) == ((0, 1),)
