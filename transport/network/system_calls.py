"""The system calls that a sandbox may forbid, tried before they are needed.

nothing works without it     named in one line, instead of an error from deep inside
memfd_create                 ranks of a node do not share memory but talk over TCP
sched_getaffinity            this process may use all cores
others                       tried where they are used: without `process_vm_readv`, say,
                             payloads are copied twice
"""

import array
import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import resource
import select
import socket
import termios
from collections.abc import Iterator

from hccl_py.transport.errors import BootstrapError

_libc = ctypes.CDLL(None, use_errno=True)

_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)


@functools.cache
def can_share_memory() -> bool:
    """Return whether this process may create shared memory; logs if not."""
    try:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        with open(os.memfd_create("hccl-probe", flags), "wb") as file:
            os.ftruncate(file.fileno(), 0)  # size 0: no file size limit forbids it
            fcntl.fcntl(file.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        import logging  # takes time, and agents of hccl-launch import this file

        logging.getLogger("hccl_py.transport").warning(
            "this process may not make shared memory (memfd_create, ftruncate, fcntl: %s), so it "
            "talks to ranks of its node over TCP, which is slower: allow these system calls",
            error.strerror,
        )
        return False
    return True


def descriptor_limits() -> tuple[int, int]:
    """Return the soft and hard descriptor limits; RLIM_INFINITY if the query is forbidden."""
    try:
        return resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:
        return resource.RLIM_INFINITY, resource.RLIM_INFINITY


@contextlib.contextmanager
def most_descriptors() -> Iterator[None]:
    """Raise the soft limit to the hard one within the context, if permitted."""
    with contextlib.ExitStack() as restored:
        with contextlib.suppress(OSError, ValueError):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft != hard:  # else another thread has done it, and will restore it
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                restored.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


def is_no_descriptor(error: BaseException | None) -> bool:
    """Return whether the process or the machine is out of descriptors."""
    return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)  # ZeroMQ's errors too


def usable_cores() -> set[int]:
    """Return the cores that this thread may run on; all if the query is forbidden."""
    try:
        return os.sched_getaffinity(0)
    except OSError:
        return set(range(os.cpu_count() or 1))


def available_memory() -> int:
    """Return the memory for new processes without swapping, by the kernel's estimate."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        sizes_kb = dict(line.split()[:2] for line in lines)
    return int(sizes_kb["MemAvailable:"]) << 10


def require_system_calls() -> None:
    """Make each call once.

    Raises:
        BootstrapError: a call is forbidden; the text names it.
    """
    with contextlib.ExitStack() as undo:
        with named("eventfd2"):
            event = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        undo.callback(os.close, event)
        with named("epoll_create1"):
            poller = undo.enter_context(select.epoll())
        with named("epoll_ctl"):
            poller.register(event, select.EPOLLIN)
        with named("epoll_wait"):
            poller.poll(0)
        with named("fcntl"):
            fcntl.fcntl(event, fcntl.F_GETFL)
        with named("socketpair"):
            one, other = socket.socketpair()
        undo.callback(one.close)
        undo.callback(other.close)
        with named("ioctl"):
            fcntl.ioctl(one, termios.FIONREAD, bytes(4))
        with named("sendmsg"):
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [event]))])
        with named("recvmsg"):
            _, rights, _, _ = other.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
        for _, _, content in rights:
            undo.callback(os.close, array.array("i", content)[0])
        with named("socket"):
            listener = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            client = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        _require_connections(listener, client)


def _require_connections(listener: socket.socket, client: socket.socket) -> None:
    with named("setsockopt"):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with named("getsockopt"):
        listener.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    with named("bind"):
        listener.bind(("127.0.0.1", 0))
    with named("listen"):
        listener.listen(1)
    with named("getsockname"):
        address = listener.getsockname()
    client.settimeout(1.0)
    try:
        with named("connect"):
            client.connect(address)
    except OSError:
        return  # a namespace whose loopback is down
    with named("accept4"):  # needed by the provider zmq
        accepted = _libc.accept4(listener.fileno(), None, None, socket.SOCK_CLOEXEC)
        if accepted < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(accepted)
    with named("getpeername"):
        client.getpeername()


@contextlib.contextmanager
def named(call: str) -> Iterator[None]:
    """Wrap a system call: BootstrapError names it if it is forbidden."""
    try:
        yield
    except OSError as error:
        if is_no_descriptor(error):
            raise BootstrapError(
                f"no descriptor is left: ulimit -n is {descriptor_limits()[0]}; raise it there"
            ) from error
        if error.errno not in _FORBIDDEN:
            raise
        raise BootstrapError(
            f"this process may not make the system call {call} ({error.strerror}), which hccl-py "
            "needs: allow it in the seccomp profile of the container or sandbox, or run without one"
        ) from error


def is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP holds a process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
    return False
