"""Rejects calls of torch whose outputs share memory, with one another or with an input.

The communicator allows the same: output and input i of a rank may be one block. Here the error has
torch's names, and the check includes accelerators' tensors and all calls of a coalesced block.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hccl_py.fingerprint import Transfer, describe
from hccl_py.memory.arguments import overlapping
from hccl_py.memory.at_once import Access, require_apart_at_once
from hccl_py.memory.buffers import cut, run_of
from hccl_py.memory.element_types import BYTES, Span
from hccl_py.memory.strided import Elements, first_two_that_meet
from hccl_py.torch_backend.checks.arguments import Call, elements_of
from hccl_py.torch_backend.checks.tensor_kinds import PLAIN_TYPES
from hccl_py.torch_backend.staging.tiles import arguments_of
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError

_SEPARATE = "give each that writes memory of its own"


class _Block(NamedTuple):
    span: Span  # of bytes
    number: int  # equal for an output and input that may share memory
    place: tuple[int, ...]  # indices in the argument


def require_apart(
    call: Call, method: str, calls: Sequence[Sequence[Any]], rank: int, world_size: int
) -> None:
    """Raise InvalidArgumentError if tensors of `calls` share memory that is written.

    Staged tensors are copies and share nothing; of the caller's tensors behind them only the
    outputs must be apart.
    """
    outputs: list[_Block] = []
    inputs: list[_Block] = []
    for index, values in enumerate(calls):
        place = (index,) * (len(calls) > 1)
        written: list[_Block] = []
        read: list[_Block] = []
        for position, _, writes, by_rank in arguments_of(method, values, rank):
            spans = _spans(values[position], world_size if by_rank else 1)
            is_list = not isinstance(values[position], Tensor)
            (written if writes else read).extend(
                _Block(
                    span,
                    index * world_size + (rank if len(spans) == 1 else i),
                    (*place, i) if is_list else place,
                )
                for i, span in enumerate(spans)
            )
        outputs += written
        if method == "all_to_all" and _run(read) == _run(written):
            continue  # in place with another cut: the communicator makes copies
        inputs += read
    _refuse_overlap(call, outputs, inputs)
    if call.copies and len(call.results) > 1:
        pair = first_two_that_meet([elements_of(one) for one in call.results])
        if pair is not None:
            raise _error(call, ((pair[0],), (pair[1],)), False)


def require_transfers_apart(batch: Sequence[tuple[bool, int, int, Tensor]]) -> None:
    """Raise InvalidArgumentError if a transfer's received data shares memory with another's.

    Each item is: whether it sends, its peer, its tag, its tensor. No transfer has begun.
    """
    require_apart_at_once([_transfer(*one) for one in batch], "batch_isend_irecv", _SEPARATE)


def require_coalesced_apart(block: Sequence[tuple[Call, str, Any]], rank: int) -> None:
    """Do the same for the calls of a coalesced block, each as in `require_apart`."""
    calls = [_access(*one, rank) for one in block]
    require_apart_at_once(calls, "_coalescing_manager", _SEPARATE)


def _access(call: Call, method: str, calls: Sequence[Sequence[Any]], rank: int) -> Access:
    if call.opts is None:
        (_, peer, tag), (tensor,) = calls[0], call.results or call.inputs
        return _transfer(method == "send", peer, tag, tensor)
    places = (place for values in calls for place in arguments_of(method, values, rank))
    written = call.results if any(place.writes for place in places) else []
    return Access(call.name, object(), _elements(written), _elements(call.inputs))


def _transfer(sends: bool, peer: int | None, tag: int, tensor: Tensor) -> Access:
    elements = _elements([tensor])
    name = describe(Transfer(sends, peer, tag, tensor.nbytes if elements else 0))
    return Access(name, object(), *(((), elements) if sends else (elements, ())))


def _elements(tensors: Iterable[Tensor]) -> list[Elements]:
    found = []
    for tensor in tensors:
        if type(tensor) in PLAIN_TYPES and tensor.layout is torch.strided:
            # A call rejects its own tensors without memory.
            with contextlib.suppress(RuntimeError):
                found.append(elements_of(tensor))
    return [one for one in found if one.address]


def _refuse_overlap(call: Call, outputs: Sequence[_Block], inputs: Sequence[_Block]) -> None:
    if not outputs or len(outputs) + len(inputs) < 2:
        return
    found = _core.find_overlap(
        *(
            [(one.span.address, one.span.count, one.number) for one in blocks]
            for blocks in (outputs, inputs)
        )
    )
    if found is not None:
        output, other, is_input = found
        places = outputs[output].place, (inputs if is_input else outputs)[other].place
        raise _error(call, places, is_input)


def _spans(data: Tensor | Sequence[Tensor], parts: int) -> list[Span]:
    if isinstance(data, Tensor):
        return cut(_span(data), parts)
    return [_span(one) for one in data]


def _span(tensor: Tensor) -> Span:
    # Tensors of some accelerators have no address.
    address = tensor.data_ptr()
    return Span(address, tensor.nbytes if address else 0, BYTES)


def _run(blocks: Sequence[_Block]) -> tuple[int, int] | None:
    return run_of([one.span for one in blocks])


def _error(
    call: Call, places: tuple[tuple[int, ...], tuple[int, ...]], is_input: bool
) -> InvalidArgumentError:
    names = call.output_name, call.input_name if is_input else call.output_name
    output, other = (
        "".join((name, *(f"[{index}]" for index in place)))
        for name, place in zip(names, places, strict=True)
    )
    return call.invalid(str(overlapping(f"`{output}`", f"`{other}`", is_input)))
