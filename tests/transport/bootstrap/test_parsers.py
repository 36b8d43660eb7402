"""Whatever a peer sends or leaves in the store: a refusal that says so, and nothing else.

HCCL_TEST_ROUNDS=100 tries a hundred times as many inputs.
"""

import os
from dataclasses import asdict
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

pytest.importorskip("hypothesis", reason="part of the extra `test`")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_handshake import COMMUNICATOR_ID, Side, world

from hccl_py.transport.bootstrap import rendezvous
from hccl_py.transport.control.message import pack, unpack
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import PROTOCOL_VERSION, Endpoint, Identity
from hccl_py.transport.wire.handshake import RejectedError

ROUNDS = int(os.environ.get("HCCL_TEST_ROUNDS", "1"))

fuzz = settings(
    max_examples=10 * ROUNDS,
    derandomize=ROUNDS == 1,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=40)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)
packed = st.binary(max_size=300) | values.map(msgpack.packb)


def replaced(good: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A good mapping of which some entries are anything at all, or missing."""
    return st.dictionaries(st.sampled_from([*good, "unknown"]), values).map(
        lambda changes: {**good, **changes}
    ) | st.sampled_from(list(good)).map(
        lambda missing: {name: value for name, value in good.items() if name != missing}
    )


INFO = rendezvous.PeerInfo(
    Identity.of_this_process(), 1, 2, 1, "name", (Endpoint("lo", "127.0.0.1", 1),), None
)
FIELDS = {"version": PROTOCOL_VERSION, **asdict(INFO)}


@fuzz
@given(packed | replaced(FIELDS).map(msgpack.packb))
def test_parser_of_infos_refuses_or_reads(data: bytes) -> None:
    try:
        info = rendezvous._unpack_info(3, data)
    except BootstrapError:
        return
    rendezvous._check_types(info)


def test_info_of_another_version_is_refused_by_name() -> None:
    old = msgpack.packb({**FIELDS, "version": PROTOCOL_VERSION - 1, "of that time": 1})
    with pytest.raises(BootstrapError, match=rf"rank 3 .*{PROTOCOL_VERSION - 1}.*one version"):
        rendezvous._unpack_info(3, old)


@fuzz
@given(st.binary(max_size=200), st.booleans())
def test_parser_of_a_hello_refuses(data: bytes, begins_well: bool) -> None:
    side = Side(world(0))
    side.inbox = (b"HCCL-PY\0" if begins_well else b"") + data + bytes(100)
    with pytest.raises(RejectedError):
        list(side.accept(lambda key: True))
    assert not side.authenticated


@fuzz
@given(packed)
def test_parser_of_control_messages_refuses_or_reads(data: bytes) -> None:
    try:
        entries = unpack(data)
    except ValueError:
        return
    assert all(len(entry.communicator) == len(COMMUNICATOR_ID) for entry in entries)
    for message in pack(entries):
        assert [one[:4] for one in unpack(message)] == [one[:4] for one in entries]
