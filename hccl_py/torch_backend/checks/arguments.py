"""Converts torch's arguments of a call to checked plain buffers; options and reduce ops.

A wrong argument raises `InvalidArgumentError` before anything is sent, so the group stays usable.
The error names the argument, the expected and the given value. Tensors that are not plain memory
(strided, conjugated, 8-bit floats times a factor) are staged through a contiguous copy on their
device, and `Call.copies` lists the copies to write back at the end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hccl_py.memory.strided import Elements
from hccl_py.memory.tensor_kinds import is_fake, without_memory
from hccl_py.torch_backend import ALIAS, NAME, owns
from hccl_py.torch_backend.checks.tensor_kinds import PLAIN_TYPES, unwrapped
from hccl_py.transport.arguments import LONGEST_S, seconds, shown, whole_numbers, wrong
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ReduceOp

Tensors = Tensor | Sequence[Tensor]
Options = TypeVar("Options")

_OPS_BY_NAME = {op.name: op for op in ReduceOp}

UNSET_TIMEOUT = timedelta(milliseconds=-1)
_FIELDS = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}


def _ops_by_hash() -> dict[int, ReduceOp]:
    """Return hccl-py's ReduceOps by the hash of torch's; none if two of torch's share a hash."""
    members: Any = dist.ReduceOp.RedOpType.__members__
    names = {
        hash(dist.ReduceOp(value)): name for name, value in members.items() if name != "PREMUL_SUM"
    }
    scaled = hash(dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]
    if len(names) < len(members) - 1 or scaled in names:
        return {}
    return {number: _OPS_BY_NAME[name] for number, name in names.items() if name in _OPS_BY_NAME}


OPS_BY_HASH = _ops_by_hash()
"""For the fast path: a hash takes half the time of `int(options.reduceOp.op)`."""


def read_options(kind: type[Options], *given: object, opts: object = None, **named: Any) -> Options:
    """Return the options object of the arguments, or build one.

    Older overloads of torch's methods pass a root, an operation or a timeout instead, by position
    in an order that differs between methods, or by name.
    """
    for value in (opts, *given):
        if isinstance(value, kind):
            return value
    options = kind()
    values = [(_field_of(value), value) for value in (opts, *given)]
    values += [(_FIELDS[name], value) for name, value in named.items()]
    for name, value in values:
        if value is not None:
            timed: Any = timedelta(seconds=seconds_of(value)) if name == "timeout" else value
            try:
                setattr(options, name, timed)
            except TypeError:
                argument = {field: given for given, field in _FIELDS.items()}[name]
                raise wrong(argument, "what torch takes there", value) from None
    return options


def _field_of(value: object) -> str:
    if isinstance(value, (timedelta, float)):
        return "timeout"
    return "rootRank" if isinstance(value, int) else "reduceOp"


def seconds_of(timeout: Any) -> float:
    """Return a timeout in seconds; torch takes a number of them wherever it takes a timedelta.

    Programs use any long timedelta for "no limit".
    """
    if isinstance(timeout, timedelta):
        return min(timeout.total_seconds(), LONGEST_S)
    if isinstance(timeout, (int, float)):
        return seconds("timeout", timeout)
    raise wrong("timeout", "a datetime.timedelta or a number of seconds", timeout)


class Backends(NamedTuple):
    """The user's backends, in torch's notation ("cpu:gloo,cuda:hccl").

    `others`: backends other than hccl, by device type; their tensors are rejected.
    """

    config: str = ""
    others: Mapping[str, str] = {}


@dataclass(slots=True)
class Call:
    """The buffers and options of one call of a group.

    Attributes:
        name: torch's name of the method, for messages.
        opts: torch's options; None for a send or receive.
        factor: of PREMUL_SUM, after `reduce_op`; else None.
        inputs: the caller's input tensors, for torch's instruments.
        results: the caller's output tensors, the value of the Work's future.
        copies: (caller's tensor, staged contiguous tensor) to be written back at the end.
        output_name: torch's name of the argument for results.
        input_name: of the argument that is only read.
        device: the accelerator of the call's tensors; None: all are in host memory.
        fake: some tensor has no memory (a FakeTensor, the device meta); nothing may be sent.
    """

    name: str
    opts: Any
    _world_size: int
    _backends: Backends
    factor: Any = None
    inputs: list[Tensor] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    device: torch.device | None = None
    fake: bool = False
    output_name: str = "output"
    input_name: str = "input"

    def timeout_s(self) -> float | None:
        """Return the options' timeout; None: unset, so the group's applies."""
        timeout = UNSET_TIMEOUT if self.opts is None else self.opts.timeout
        return None if timeout < timedelta(0) else seconds_of(timeout)

    def reduce_op(self) -> ReduceOp:
        """Return the operation, and store the factor of PREMUL_SUM."""
        name = self.opts.reduceOp.op.name
        if name == "PREMUL_SUM":
            self.factor = self.opts.reduceOp.factor
            return ReduceOp.SUM
        if name in _OPS_BY_NAME:
            return _OPS_BY_NAME[name]
        raise self.invalid(f"`op` must be one of {list(_OPS_BY_NAME)}, got {name}")

    def rank(self, argument: str, rank: int) -> int:
        """Return `rank` if it is one of the group."""
        if isinstance(rank, int) and 0 <= rank < self._world_size:
            return rank
        raise self.invalid(
            f"`{argument}` must be a rank of this group, 0 to {self._world_size - 1}, "
            f"got {shown(rank)}"
        )

    def invalid(self, message: str) -> InvalidArgumentError:
        """Return the error to raise for a wrong argument of this call."""
        return InvalidArgumentError(f"{self.name}: {message}")

    def input(self, argument: str, tensor: Tensor, *, like: Tensor | None = None) -> Tensor:
        """Return a contiguous buffer of `tensor` times the factor, if possible itself."""
        tensor = self._checked(argument, tensor, like)
        self.input_name = argument
        self.inputs.append(tensor)
        return self._reducible(tensor if self._is_dense(tensor) else _dense_copy(tensor))

    def output(self, argument: str, tensor: Tensor, *, like: Tensor | None = None) -> Tensor:
        """Return a contiguous buffer for the new values of `tensor`; the old ones are not kept."""
        tensor = self._checked(argument, tensor, like)
        self.output_name = argument
        self.results.append(tensor)
        if self._is_dense(tensor):
            return tensor
        staged = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return self._write_back(argument, tensor, staged)

    def in_out(self, argument: str, tensor: Tensor) -> Tensor:
        """Return `input`'s buffer, which also receives the result."""
        tensor = buffer = self._checked(argument, tensor, None)
        self.output_name = argument
        self.inputs.append(tensor)
        self.results.append(tensor)
        if not self._is_dense(tensor):
            buffer = self._write_back(argument, tensor, _dense_copy(tensor))
        reducible = self._reducible(buffer)
        if reducible is not buffer:
            # First from this copy, then (already listed) from the contiguous one.
            self.copies.insert(0, (buffer, reducible))
        return reducible

    def _reducible(self, buffer: Tensor) -> Tensor:
        if self.fake or self.factor is None:
            return buffer
        # 8-bit floats: products are in 32 bits, and the result is rounded once.
        wide = buffer.is_floating_point() and buffer.itemsize == 1
        return self.scaled(buffer.detach().to(torch.float32 if wide else buffer.dtype))

    def scaled(self, values: Tensor) -> Tensor:
        """Return `values` times the factor of PREMUL_SUM, unchanged without one."""
        factor = self.factor
        if factor is None:
            return values
        scaled = values * (factor.reshape(()) if isinstance(factor, Tensor) else factor)
        if scaled.dtype != values.dtype:
            raise self.invalid(
                f"`op` PREMUL_SUM of {values.dtype} needs a factor of that type, "
                f"got {shown(factor)}"
            )
        return scaled

    def only(self, argument: str, given: Tensors | None) -> Tensor:
        """Return the one tensor of `given`; torch passes one per device."""
        if isinstance(given, (list, tuple)):
            if len(given) != 1:
                raise self.invalid(f"`{argument}` must be one tensor, got a list of {len(given)}")
            given = given[0]
        if not isinstance(given, Tensor):
            raise self.invalid(f"`{argument}` must be a tensor, got {type(given).__name__}")
        return given

    def listed(self, argument: str, given: Any) -> Sequence[Any]:
        """Return a list of tensors, or of lists of them; nothing for None."""
        if given is None or isinstance(given, (list, tuple)):
            return given or ()
        raise self.invalid(f"`{argument}` must be a list of tensors, got {type(given).__name__}")

    def blocks(self, argument: str, lists: Any) -> Sequence[Tensor]:
        """Return the tensors of `lists`, one per rank, or of the one such list in `lists`."""
        blocks: Sequence[Tensor] = self.listed(argument, lists)
        if len(blocks) == 1 and not isinstance(blocks[0], Tensor):
            blocks = self.listed(argument, blocks[0])
        self.one_per_rank(argument, blocks, "tensors")
        for block in blocks:
            self.only(argument, block)
        return blocks

    def one_per_rank(self, argument: str, given: Any, what: str) -> None:
        """Raise unless there is an item for every rank."""
        given = self.listed(argument, given)
        if len(given) != self._world_size:
            raise self.invalid(
                f"`{argument}` must be {self._world_size} {what}, one per rank, got {len(given)}"
            )

    def no_blocks(self, argument: str, lists: Any, root: int) -> None:
        """Raise if `lists` holds tensors although this rank is not the root."""
        lists = self.listed(argument, lists)
        if len(lists) > 1 or (len(lists) == 1 and len(self.listed(argument, lists[0])) > 0):
            raise self.invalid(f"`{argument}` must be given on the root (rank {root}) only")

    def sizes(self, argument: str, sizes: Any) -> list[int]:
        """Return split sizes, which may be an array of numpy; none for None."""
        given = () if sizes is None else sizes
        return list(whole_numbers(f"{self.name}: `{argument}`", given, "whole numbers"))

    def rows(self, argument: str, buffer: Tensor, sizes: list[int]) -> Sequence[Tensor]:
        """Return `buffer` cut along dimension 0 into a part per rank, of `sizes` or equal ones."""
        shape, count = tuple(buffer.shape), self._world_size
        if not shape:
            raise self.invalid(f"`{argument}` must have at least one dimension, got a scalar")
        if not sizes:
            if shape[0] % count:
                raise self.invalid(
                    f"`{argument}` must have a number of rows divisible by {count} "
                    f"ranks, or come with split sizes; got shape {shape}"
                )
            sizes = [shape[0] // count] * count
        if len(sizes) != count or min(sizes) < 0 or sum(sizes) != shape[0]:
            raise self.invalid(
                f"`{argument}_split_sizes` must be {count} sizes that add up to "
                f"{shape[0]}, the rows of `{argument}`; got {list(sizes)}"
            )
        parts: Sequence[Tensor] = buffer.detach().split(sizes)  # type: ignore[no-untyped-call]
        return parts

    def pairs(
        self, name: str, ones: Sequence[Any], other_name: str, others: Sequence[Tensor]
    ) -> Iterator[tuple[Any, Tensor]]:
        """Return the pairs of two lists, which must be as long as each other."""
        ones, others = self.listed(name, ones), self.listed(other_name, others)
        if len(ones) != len(others):
            raise self.invalid(
                f"`{name}` must have {len(others)} tensors as `{other_name}` has, got {len(ones)}"
            )
        return zip(ones, others, strict=True)

    def same_size(self, argument: str, tensor: Tensor, count: int, why: str) -> None:
        """Raise unless `tensor` has `count` elements."""
        if tensor.numel() != count:
            raise self.invalid(
                f"`{argument}` must have {count} elements ({why}), "
                f"got {tensor.numel()} (shape {tuple(tensor.shape)})"
            )

    def require_own_device(self, tensor: Tensor) -> None:
        """Raise if this device's tensors belong to another backend of the group."""
        other = self._backends.others.get(tensor.device.type)
        if other:
            raise self.invalid(
                f"got a tensor on {tensor.device}, which is for {other} in the backend "
                f'"{self._backends.config}" of this group; but torch gives a group with hccl in it '
                "to hccl alone. Make a second group for such tensors, "
                f'torch.distributed.new_group(backend="{other}"), and pass it as `group`; or write '
                f'backend="{NAME if owns(NAME) else ALIAS}", which takes them itself'
            )

    def require_memory(self, argument: str, tensor: Tensor) -> None:
        """Raise unless the elements of a host tensor are in its own memory."""
        found = without_memory(tensor)
        if found:
            raise self._not_plain(argument, found)

    def _checked(self, argument: str, tensor: Tensor, like: Tensor | None) -> Tensor:
        if type(tensor) not in PLAIN_TYPES:
            if not isinstance(tensor, Tensor):
                raise self.invalid(f"`{argument}` must be a tensor, got {type(tensor).__name__}")
            try:
                tensor = unwrapped(tensor)
            except TypeError as error:
                raise self._not_plain(argument, str(error)) from None
            self.fake = self.fake or is_fake(tensor)
        if self._backends.others:
            self.require_own_device(tensor)
        if tensor.layout is not torch.strided:
            raise self.invalid(
                f"`{argument}` must be a dense tensor, got layout {tensor.layout}; pass "
                ".to_dense() of it (all_reduce takes the layout torch.sparse_coo as well)"
            )
        if not tensor.is_cpu and not self.fake:
            if tensor.is_meta:
                self.fake = True
            else:
                self._take_device(argument, tensor.device)
        if tensor.is_cpu and not self.fake:
            self.require_memory(argument, tensor)
        if like is not None and tensor.dtype != like.dtype:
            raise self.invalid(
                f"all tensors must have one dtype: `{argument}` has {tensor.dtype}, "
                f"expected {like.dtype}"
            )
        return tensor

    def _take_device(self, argument: str, device: torch.device) -> None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        # MPS has no streams that copy to pinned memory.
        if accelerator is None or device.type != accelerator.type or device.type == "mps":
            known = "cpu" if accelerator is None else f"cpu or {accelerator.type}"
            raise self.invalid(
                f"`{argument}` must be on the device {known}, got {device}; pass .cpu() of it"
            )
        if self.device not in (None, device):
            raise self.invalid(
                f"all tensors of a call must be on one device: `{argument}` is on {device}, "
                f"another on {self.device}"
            )
        self.device = device

    def _not_plain(self, argument: str, found: str) -> InvalidArgumentError:
        return self.invalid(f"`{argument}` must be a plain tensor, got {found}")

    def _is_dense(self, tensor: Tensor) -> bool:
        return self.fake or not (
            not tensor.is_contiguous()
            or tensor.is_neg()
            or tensor.is_conj()
            or tensor._is_zerotensor()
        )

    def _write_back(self, argument: str, tensor: Tensor, staged: Tensor) -> Tensor:
        if tensor._is_zerotensor():
            raise self.invalid(
                f"`{argument}` is written to, so it must have memory, got one of torch's immutable "
                "tensors of zeros; pass .clone()"
            )
        if elements_of(tensor).share_memory():
            raise self.invalid(
                f"`{argument}` is written to, so no two of its elements may share "
                "memory (an expanded tensor); pass .contiguous()"
            )
        self.copies.append((tensor, staged))
        return staged


def elements_of(tensor: Tensor) -> Elements:
    """Return address, shape and strides of a dense tensor."""
    return Elements(tensor.data_ptr(), tensor.itemsize, tensor.shape, tensor.stride())


def _dense_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def write_back(copies: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Write every staged result into the caller's tensor."""
    # Inference mode permits writes to leaves that require grad and to inference tensors. The caller
    # has asked for these writes.
    with torch.inference_mode():
        for tensor, staged in copies:
            tensor.copy_(staged)
