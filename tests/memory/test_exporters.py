"""Memory that is neither numpy's nor torch's: the buffer protocol and DLPack.

JAX and TensorFlow are tried where they are installed; hccl-py itself imports none of them.
"""

import array
import ctypes
import gc
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator, InvalidArgumentError, ReduceOp, group
from hccl_py.memory.buffers import span_of

ranks = ranks_on("aab")
WRITABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "bytearray": (lambda: bytearray(8), "uint8"),
    "array": (lambda: array.array("f", [0.0] * 8), "float32"),
    "memoryview": (lambda: memoryview(bytearray(16)).cast("h"), "int16"),
    "two-dimensional": (lambda: memoryview(bytearray(16)).cast("h", (4, 2)), "int16"),
    "ctypes": (lambda: (ctypes.c_double * 8)(), "float64"),
    "mmap": (lambda: mmap.mmap(-1, 8), "uint8"),
}


class Exporter:
    """Exports a torch tensor's memory, and nothing else of it, as another library would."""

    def __init__(self, tensor: torch.Tensor, device: tuple[int, int] = (1, 0)) -> None:
        self.tensor = tensor
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldExporter(Exporter):
    """Knows nothing of versions."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self.tensor.__dlpack__()


@pytest.mark.parametrize(("make", "kind"), WRITABLE.values(), ids=WRITABLE)
def test_buffer_protocol_gives_address_count_and_type(make: Callable[[], Any], kind: str) -> None:
    buffer = make()
    span = span_of(buffer, writable=True)
    assert (span.count, span.kind.name) == (8, kind)
    ctypes.memset(span.address, 1, 1)
    assert bytes(memoryview(buffer).cast("B"))[0] == 1


@pytest.mark.parametrize("name", WRITABLE)
def test_buffers_are_reduced_and_moved(ranks: ThreadRanks, name: str) -> None:
    def use(comm: Communicator) -> list[float]:
        buffer = WRITABLE[name][0]()
        elements = np.asarray(memoryview(buffer)).reshape(-1)
        elements[:] = comm.rank + 1
        comm.all_reduce(buffer)
        comm.all_reduce(buffer, ReduceOp.MAX)
        other = WRITABLE[name][0]()
        with group():
            comm.send(buffer, comm.rank)
            comm.recv(other, comm.rank)
        return [float(one) for one in np.asarray(memoryview(other)).reshape(-1)]

    assert ranks.run(use) == [[6.0] * 8] * 3


def test_memory_stays_where_it_is_until_the_call_is_done(ranks: ThreadRanks) -> None:
    def use(comm: Communicator) -> list[float]:
        data = array.array("d", [1.0] * 4)
        works = [comm.nonblocking.all_reduce(data)]
        blocks = array.array("d", [0.0] * 12)
        works.append(comm.nonblocking.all_gather(blocks, data))
        works.append(comm.nonblocking.gather(blocks if comm.rank == 0 else None, data, 0))
        for grown in (data, blocks):
            with pytest.raises(BufferError):
                grown.append(1.0)
        for work in works:
            work.wait()
        del works, work
        gc.collect()
        data.append(9.0)
        blocks.append(9.0)
        return data.tolist() + blocks.tolist()

    assert ranks.run(use) == [[3.0] * 4 + [9.0] + [3.0] * 12 + [9.0]] * 3


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
    + [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu],
    ids=str,
)
def test_dlpack_gives_address_count_and_type(exporter: Any, dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 5, dtype=dtype)
    span = span_of(exporter(tensor), writable=True)
    assert span == span_of(tensor)
    assert span.address == tensor.data_ptr()


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
def test_arrays_of_other_libraries_take_part(ranks: ThreadRanks, exporter: Any) -> None:
    def use(comm: Communicator) -> list[float]:
        data = exporter(torch.full((4,), comm.rank + 1.0, dtype=torch.bfloat16))
        comm.all_reduce(data)
        every = exporter(torch.zeros(12, dtype=torch.bfloat16))
        work = comm.nonblocking.all_gather(every, data)
        work.wait()
        return [float(one) for one in every.tensor]

    assert ranks.run(use) == [[6.0] * 12] * 3


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "strided tensor": (lambda: Exporter(torch.zeros(4, 4).t()), "C-contiguous memory, got .*shape"),
    "strided view": (lambda: memoryview(bytearray(8))[::2], "C-contiguous memory, got memoryview"),
    "fortran": (lambda: memoryview(np.zeros((2, 3), order="F")), "C-contiguous memory"),
    "cupy": (lambda: Exporter(torch.zeros(3), (2, 1)), r"on cuda:1; pass a copy.*CuPy: array.get"),
    "rocm": (lambda: Exporter(torch.zeros(3), (10, 0)), "on rocm:0; pass a copy"),
    "other device": (lambda: Exporter(torch.zeros(3), (99, 0)), "on DLPack device 99:0"),
    "requires grad": (lambda: Exporter(torch.zeros(3, requires_grad=True)), "does not export"),
    "records": (lambda: memoryview(np.zeros(3, "i4, f8")), "expected numbers, got memoryview"),
    "text": (lambda: "text", "buffer protocol or __dlpack__, got str"),
    "list": (lambda: 3.5, "buffer protocol or __dlpack__, got float"),
    "released": (lambda: _released(), "got memoryview, which is none now"),
}


def _released() -> memoryview:
    view = memoryview(bytearray(3))
    view.release()
    return view


@pytest.mark.parametrize("name", REFUSED)
def test_other_memory_is_refused_with_what_to_do(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=f"data: .*{message}"):
        span_of(make())


class DLTensor(ctypes.Structure):
    """What a capsule of DLPack holds."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        *(("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8)),
        ("lanes", ctypes.c_uint16),
        *((name, ctypes.POINTER(ctypes.c_int64)) for name in ("shape", "strides")),
        ("byte_offset", ctypes.c_uint64),
    )


class Liar:
    """Exports ten bytes, with something changed."""

    def __init__(self, *shape: int, name: bytes = b"dltensor", **changed: Any) -> None:
        self.memory, self.name = (ctypes.c_char * 10)(), name
        shape = shape or (10,)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        fields = {"data": ctypes.addressof(self.memory), "ndim": len(shape), "code": 1, "bits": 8}
        fields |= {"device": (1, 0), "lanes": 1, "shape": self.shape} | changed
        self.tensor = DLTensor(**fields)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), self.name, None)


class NoCapsule(Liar):
    """Exports something else."""

    def __dlpack__(self) -> Any:
        return self.memory


@pytest.mark.parametrize(
    ("liar", "message"),
    [
        (Liar(data=None), "null pointer"),
        (Liar(5, -2), "negative length"),
        (Liar(ndim=-1), "less than no dimensions"),
        (Liar(1 << 62, bits=64), "more than all memory"),
        (Liar(1 << 40, 1 << 40), "more than all memory"),
        (Liar(byte_offset=(1 << 64) - 1), "more than all memory"),
        (Liar(device=(2, 0)), "says that it is there, and exports memory of cuda"),
        (Liar(code=2, bits=0), "0 bits"),
        (Liar(5, code=6, bits=16), "16 bits"),
        (Liar(name=b"used_dltensor"), "does not export its memory"),
        (NoCapsule(), "does not export its memory"),
    ],
)
def test_capsule_of_impossible_memory_is_refused(liar: Liar, message: str) -> None:
    assert span_of(Liar()).count == 10
    assert span_of(Liar(0, data=None)).count == 0
    with pytest.raises(InvalidArgumentError, match=f"data: .*{message}"):
        span_of(liar)


class Immutable(Exporter):
    """Gives no sign that nobody may write to it, but for the library that it is of."""

    __module__ = "jax.numpy"


READ_ONLY = {
    "pass a writable buffer": (bytes(8), memoryview(bytearray(8)).toreadonly()),
    "such arrays are immutable: have a numpy array": (Immutable(torch.zeros(8)),),
}


@pytest.mark.parametrize("advice", READ_ONLY)
def test_read_only_buffers_are_inputs_only(advice: str) -> None:
    for buffer in READ_ONLY[advice]:
        assert span_of(buffer).count == 8
        with pytest.raises(InvalidArgumentError, match=f"read-only .*; {advice}"):
            span_of(buffer, writable=True)


def test_read_only_export_is_an_input_only() -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False

    class Frozen:
        __dlpack_device__ = frozen.__dlpack_device__
        __dlpack__ = frozen.__dlpack__

    assert span_of(Frozen()).count == 3
    with pytest.raises(InvalidArgumentError, match="read-only .*Frozen; pass a writable buffer"):
        span_of(Frozen(), writable=True)
