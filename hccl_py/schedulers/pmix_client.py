"""A program: `python -I -S pmix_client.py LIBPMIX SECONDS`, the value of rank 0 on its stdin.

It imports only the standard library, so it starts in milliseconds. Rank 0 puts the value into the
store of the job; the others, whose stdin is empty, wait for it and print it.
"""

import ctypes
import sys

_KEY = b"hccl.rendezvous"
_TIMEOUT = b"pmix.timeout"
_INT, _STRING = 6, 3
_GLOBAL = 3


class Process(ctypes.Structure):
    """`pmix_proc_t`."""

    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class Data(ctypes.Union):
    """The data of `pmix_value_t`, as long as their longest member, `pmix_envar_t`."""

    _fields_ = (
        ("string", ctypes.c_char_p),
        ("integer", ctypes.c_int),
        ("longest", ctypes.c_void_p * 3),
    )


class PmixValue(ctypes.Structure):
    """`pmix_value_t`."""

    _fields_ = (("type", ctypes.c_uint16), ("data", Data))


class Info(ctypes.Structure):
    """`pmix_info_t`."""

    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", PmixValue))


def main() -> None:
    """Put or get the value."""
    library, timeout_s, value = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), sys.stdin.read()
    me, none = Process(), ctypes.c_size_t(0)
    check(library, "PMIx_Init", library.PMIx_Init(ctypes.byref(me), None, none))
    try:
        if value:
            given = PmixValue(_STRING, Data(string=value.encode()))
            done = library.PMIx_Put(ctypes.c_uint8(_GLOBAL), _KEY, ctypes.byref(given))
            check(library, "PMIx_Put", done or library.PMIx_Commit())
        else:
            print(get(library, Process(me.namespace, 0), timeout_s), end="")
    finally:
        # mpirun treats a process that began PMIx and ends without this as failed.
        library.PMIx_Finalize(None, none)


def get(library: ctypes.CDLL, process: Process, timeout_s: int) -> str:
    """Wait for the value of a process."""
    limit = Info(_TIMEOUT, 0, PmixValue(_INT, Data(integer=timeout_s)))
    found = ctypes.POINTER(PmixValue)()
    where = ctypes.byref(process), _KEY, ctypes.byref(limit), ctypes.c_size_t(1)
    check(library, "PMIx_Get", library.PMIx_Get(*where, ctypes.byref(found)))
    text: bytes = found.contents.data.string
    return text.decode()


def check(library: ctypes.CDLL, call: str, status: int) -> None:
    """End the program if a call failed."""
    if status:
        library.PMIx_Error_string.restype = ctypes.c_char_p
        sys.exit(f"{call}: {library.PMIx_Error_string(status).decode(errors='replace')}")


if __name__ == "__main__":
    main()
