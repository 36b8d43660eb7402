"""Compression between nodes: the calls that use it, their error feedback, and its gain.

`plan/compress.py` marks the edges, `csrc/reduce/reduce.h` defines the encodings and their errors.
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
"""Smaller calls are not compressed: latency dominates, and losses and norms stay exact."""

_COLLECTIVES = ("all_reduce", "reduce_scatter")
_OPS = (ReduceOp.SUM, ReduceOp.AVG)
_FLOAT32 = ELEMENT_TYPES[DType.FLOAT32]
_JUDGED_NS = 500_000_000  # encoding and decoding time on rank 0 before it decides


def is_compressible(collective: str, kind: ElementType, op: int, num_bytes: int) -> bool:
    """Return whether a compressing communicator compresses this call; equal on all ranks."""
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
    """Return the given compression; without one `HCCL_COMPRESSION`, else none."""
    if given is not None:
        return compression_named(given)
    return compression_named(os.environ.get(VARIABLE) or "none", VARIABLE)


class ErrorFeedback:
    """Compression of one tensor that is reduced repeatedly, such as a bucket of gradients.

    The compression error of this rank's messages in one `all_reduce` is added in the next one, so
    that errors do not accumulate. Use one object per tensor, on every rank, in one call at a time.

    Attributes:
        compression: `bf16` or `int8`.
        residual: the error, by element; None before the first call. Zero it to reset.
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

    Its cost is the time of encoding and decoding. Its gain is the time of the bytes that were not
    sent: at the measured network speed where bytes wait for the network, elsewhere at the measured
    time per byte of sending and receiving.

    Attributes:
        is_open: whether calls without a compression argument `check`.
        is_decided: whether enough was compressed to decide and, if necessary, warn.
    """

    def __init__(self, name: str, is_open: bool) -> None:
        """Start to watch a communicator of this name."""
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
