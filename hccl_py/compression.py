"""Which calls are compressed between nodes, what a call loses and adds again, and whether it pays.

`plan/compress.py` marks the edges, `csrc/reduce/reduce.h` states the encodings and their errors.
"""

import logging
import os

import numpy as np
import numpy.typing as npt

from hccl_py.memory.element_types import ELEMENT_TYPES, ElementType
from hccl_py.transport import _core
from hccl_py.transport.arguments import wrong
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import Compression, DType, ReduceOp

logger = logging.getLogger("hccl_py")

VARIABLE = "HCCL_COMPRESSION"

MIN_BYTES = 64 << 10
"""A smaller call is sent as it is: latency dominates it, and losses and norms stay exact."""

_COLLECTIVES = ("all_reduce", "reduce_scatter")
_OPS = (ReduceOp.SUM, ReduceOp.AVG)
_FLOAT32 = ELEMENT_TYPES[DType.FLOAT32]
_JUDGED_NS = 500_000_000  # of encoding and decoding on rank 0, before it says whether that pays


def is_compressible(collective: str, kind: ElementType, op: int, num_bytes: int) -> bool:
    """Return whether a communicator that compresses does so in this call; equal on all ranks."""
    fits = collective in _COLLECTIVES and kind is _FLOAT32 and op in _OPS
    return fits and num_bytes >= MIN_BYTES


def compression_named(name: object, source: str = "compression") -> Compression:
    """Return the compression of this name; raise InvalidArgumentError if there is none."""
    for compression in Compression:
        if isinstance(name, str) and name == compression.name.lower():
            return compression
    valid = ", ".join(one.name.lower() for one in Compression)
    raise wrong(source, f"one of {valid}", name)


def default_compression(given: str | None) -> Compression:
    """Return what a communicator was made with; without it `HCCL_COMPRESSION`, else none."""
    if given is not None:
        return compression_named(given)
    return compression_named(os.environ.get(VARIABLE) or "none", VARIABLE)


class ErrorFeedback:
    """Compression of one tensor that is reduced again and again, such as a bucket of gradients.

    What compressing this rank's messages lost in one `all_reduce` is added in the next one, so
    that the errors of many calls do not add up. Use one object for each tensor, on every rank, and
    in one call at a time.

    Attributes:
        compression: `bf16` or `int8`.
        residual: what was lost, by element; None before the first call. Zero it to forget.
    """

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self.residual: npt.NDArray[np.float32] | None = None

    def address(self, count: int) -> int:
        """Return the address of the residual of a tensor of `count` elements."""
        if self.residual is None:
            self.residual = np.zeros(count, np.float32)
        if self.residual.size != count:
            raise InvalidArgumentError(
                f"compression: this ErrorFeedback is of {self.residual.size} elements, "
                f"the call has {count}; use one for each tensor"
            )
        return int(self.residual.ctypes.data)


class GainCheck:
    """Warns once, on rank 0, if compression costs more time than it saves.

    It costs the time of encoding and decoding. It saves the time of the bytes that were not sent.
    Where bytes wait for the network, the transport measures its speed. Elsewhere a byte costs what
    sending and receiving took for each byte that was sent.

    Attributes:
        is_open: whether calls that say nothing of compression are to `check`.
        is_decided: whether enough was compressed, and the warning given if there is one.
    """

    def __init__(self, name: str, is_open: bool) -> None:
        """Begin to watch a communicator of this name."""
        self.is_open = is_open
        self._name = name
        self.is_decided = False

    def check(self, core: _core.Communicator) -> None:
        """Decide once this engine has compressed enough; warn if compression loses."""
        if self.is_decided:
            return
        calls, raw_bytes, sent_bytes, coding_ns = core.compression()
        if coding_ns < _JUDGED_NS or not sent_bytes:
            return
        self.is_decided, self.is_open = True, False
        bytes_per_s = sum(path["bytes_per_second"] for path in core.path_statistics())
        _, _, wire_ns = core.profile()
        s_per_byte = max(wire_ns / 1e9 / sent_bytes, 1 / bytes_per_s if bytes_per_s else 0.0)
        saved_s = (raw_bytes - sent_bytes) * s_per_byte
        if coding_ns / 1e9 > saved_s:
            logger.warning(
                f"rank 0 of {self._name}: compression loses on this network: in {calls} calls "
                f"encoding and decoding took {coding_ns / 1e9:.3g} s and saved {saved_s:.3g} s of "
                "sending and receiving; leave compression out"
            )
