"""HCCL_IB_*: the RDMA device and its packets. The names are NCCL's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from hccl_py.transport.errors import InvalidArgumentError

MOST_PAIRS = 16
_MOST_BYTES = 2**63 - 1


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True)
class RdmaSettings:
    """The environment's settings of RDMA; None is unset.

    Attributes:
        devices: HCCL_IB_HCA: names or prefixes, with `:PORT` if wanted; `^` excludes, `=` is exact.
        gid_index: HCCL_IB_GID_INDEX, instead of the choice of `choice.choose_gid`.
        traffic_class: HCCL_IB_TC, the IP header's; its upper six bits are the DSCP.
        service_level: HCCL_IB_SL.
        timeout_code: HCCL_IB_TIMEOUT: a packet that is not acknowledged within 4.096 us x 2^code
            is sent again.
        retry_count: HCCL_IB_RETRY_CNT: how often. 7 is for ever on soft-RoCE.
        num_pairs: HCCL_IB_QPS_PER_CONNECTION: queue pairs of a lane, whose messages take turns.
        registered_bytes: HCCL_IB_REGISTERED_BYTES: how much of the tensors in registered memory
            each communicator registers with the device at a time; 0: their messages are copied.
    """

    devices: str | None = None
    gid_index: int | None = None
    traffic_class: int = 0
    service_level: int = 0
    timeout_code: int = 20
    retry_count: int = 6
    num_pairs: int = 1
    registered_bytes: int = field(default_factory=_half_of_memory)

    @property
    def lists_devices(self) -> bool:
        """Whether HCCL_IB_HCA lists devices to use, not only exclusions."""
        return self.devices is not None and not self.devices.startswith("^")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> RdmaSettings:
        """Read the settings of a process; InvalidArgumentError: one is invalid."""
        given = {name: value for name, value in environ.items() if value}
        index = _number(given, "HCCL_IB_GID_INDEX", -1, 0, 255)
        return cls(
            devices=given.get("HCCL_IB_HCA"),
            gid_index=None if index < 0 else index,
            traffic_class=_number(given, "HCCL_IB_TC", cls.traffic_class, 0, 255),
            service_level=_number(given, "HCCL_IB_SL", cls.service_level, 0, 15),
            timeout_code=_number(given, "HCCL_IB_TIMEOUT", cls.timeout_code, 1, 31),
            retry_count=_number(given, "HCCL_IB_RETRY_CNT", cls.retry_count, 0, 7),
            num_pairs=_number(given, "HCCL_IB_QPS_PER_CONNECTION", cls.num_pairs, 1, MOST_PAIRS),
            registered_bytes=_number(
                given, "HCCL_IB_REGISTERED_BYTES", _half_of_memory(), 0, _MOST_BYTES
            ),
        )


def _number(given: Mapping[str, str], name: str, unset: int, least: int, most: int) -> int:
    text = given.get(name)
    if text is None:
        return unset
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        expected = f"a number from {least} to {most}" if least < most else f"{least}"
        raise InvalidArgumentError(f"{name}: expected {expected}, got {text!r}")
    return int(text)
