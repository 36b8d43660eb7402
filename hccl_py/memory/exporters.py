"""Memory of objects other than numpy's and torch's, through two common protocols.

`__dlpack__`: JAX, CuPy, TensorFlow and others, none of which is imported. The buffer protocol:
bytearray, array.array, memoryview, ctypes arrays, mmap. The memory stays exported, and does not
move, while its `HeldAddress` lives.
"""

import math
from typing import Any

import numpy as np

from hccl_py.memory.element_types import ElementType, Span, element_type, learn
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError

_DLPACK_VERSION = (1, 0)
_ON_THE_HOST = (1, 3, 11)  # kDLCPU, and pinned memory of CUDA and ROCm
_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda managed"}
# Exporters of immutable memory that do not mark it read-only.
_IMMUTABLE = ("jax", "jaxlib", "tensorflow")
_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
_FLOAT8 = ["e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"]
_WHOLE_NAMES = {6: "bool", **{7 + i: f"float8_{name}" for i, name in enumerate(_FLOAT8)}}
"""DLPack's codes of element types."""


class HeldAddress(int):
    """An address; `holder` keeps its memory alive and in place."""

    holder: object

    def __new__(cls, address: int, holder: object) -> "HeldAddress":  # noqa: D102
        made = super().__new__(cls, address)
        made.holder = holder
        return made


def span_of_exporter(exporter: Any, name: str, writable: bool) -> Span | None:
    """Export an object's memory; None if it exports none. A Span is returned unchanged.

    Raise InvalidArgumentError if it is on a device, not contiguous, or wrongly read-only.
    """
    if isinstance(exporter, Span):
        return exporter
    if hasattr(exporter, "__dlpack__") and hasattr(exporter, "__dlpack_device__"):
        return _by_dlpack(exporter, name, writable)
    try:
        view = memoryview(exporter)
    except TypeError:
        return None
    except (ValueError, BufferError) as error:
        raise InvalidArgumentError(
            f"{name}: expected a buffer, got {type(exporter).__name__}, which is none now: {error}"
        ) from error
    return _by_buffer_protocol(view, exporter, name, writable)


def _by_buffer_protocol(view: memoryview, exporter: object, name: str, writable: bool) -> Span:
    kind = type(exporter).__name__
    if not view.c_contiguous:
        raise InvalidArgumentError(
            f"{name}: expected C-contiguous memory, got {kind} of shape {view.shape} with strides "
            f"{view.strides} (bytes); copy it first, into a bytearray or a numpy array"
        )
    if writable and (view.readonly or _is_immutable(exporter)):
        raise _read_only(exporter, name)
    try:
        array = np.asarray(view)
    except (ValueError, NotImplementedError) as error:
        raise InvalidArgumentError(
            f"{name}: expected numbers, got {kind} with elements of format {view.format!r}"
        ) from error
    if array.dtype.kind in "OSUV":
        raise InvalidArgumentError(
            f"{name}: expected numbers, got {kind} with elements of format {view.format!r}; "
            "pass memoryview(...).cast('B') to move it as bytes"
        )
    return Span(HeldAddress(array.ctypes.data, view), array.size, learn(array.dtype, name))


def _by_dlpack(exporter: Any, name: str, writable: bool) -> Span:
    kind = _kind(exporter)
    try:
        device, number = map(int, exporter.__dlpack_device__())
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{name}: {kind} does not say where its memory is (DLPack): {error}"
        ) from error
    if device not in _ON_THE_HOST:
        device_name = f"{_DEVICES.get(device, f'DLPack device {device}')}:{number}"
        raise InvalidArgumentError(
            f"{name}: expected memory of the host, got {kind} on {device_name}; pass a copy on the "
            "host (CuPy: array.get() or cupy.asnumpy; JAX: numpy.array; torch: .cpu()), and put "
            "the result back"
        )
    if writable and _is_immutable(exporter):
        raise _read_only(exporter, name)
    try:
        capsule = _export(exporter)
        address, shape, contiguous, read_only, element, its_device = _core.dlpack_view(capsule)
    except (BufferError, ValueError, RuntimeError, TypeError) as error:
        raise InvalidArgumentError(
            f"{name}: {kind} does not export its memory (DLPack): {error}"
        ) from error
    if its_device not in _ON_THE_HOST:
        raise InvalidArgumentError(
            f"{name}: expected memory of the host, got {kind}, which says that it is there, and "
            f"exports memory of {_DEVICES.get(its_device, f'DLPack device {its_device}')}"
        )
    if not contiguous:
        raise InvalidArgumentError(
            f"{name}: expected C-contiguous memory, got {kind} of shape {shape} with other strides;"
            " make a contiguous copy first"
        )
    if writable and read_only:
        raise _read_only(exporter, name)
    size = math.prod(shape)
    return Span(HeldAddress(address, (exporter, capsule)), size, _element(element, kind, name))


def _export(exporter: Any) -> object:
    # Older exporters have no versions, and cannot mark memory read-only.
    try:
        return exporter.__dlpack__(max_version=_DLPACK_VERSION)
    except TypeError:
        return exporter.__dlpack__()


def _element(element: tuple[int, int, int], kind: str, name: str) -> ElementType:
    code, bits, lanes = element
    found = _WHOLE_NAMES.get(code) or f"{_NAMES.get(code, '')}{bits}"
    is_known = code in _NAMES or (code in _WHOLE_NAMES and bits == 8)
    if lanes != 1 or bits % 8 or not bits or not is_known:
        raise InvalidArgumentError(
            f"{name}: expected elements of whole bytes, got {kind} with DLPack type code {code}, "
            f"{bits} bits, {lanes} lanes; view it as uint8 to move it as bytes"
        )
    return element_type(found, bits // 8)


def _kind(exporter: object) -> str:
    return f"{type(exporter).__module__.partition('.')[0]}.{type(exporter).__name__}"


def _is_immutable(exporter: object) -> bool:
    return _kind(exporter).partition(".")[0] in _IMMUTABLE


def _read_only(exporter: object, name: str) -> InvalidArgumentError:
    hint = "pass a writable buffer (a bytearray, a numpy array)"
    if _is_immutable(exporter):
        hint = (
            "such arrays are immutable: have a numpy array take the result (output=...; "
            "for JAX jax.numpy.asarray(result) afterwards, for TensorFlow tf.constant(result))"
        )
    return InvalidArgumentError(
        f"{name}: expected writable memory, got a read-only {_kind(exporter)}; {hint}"
    )
