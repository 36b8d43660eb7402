"""Warns once if ranks train copies of one model that nothing keeps equal. HCCL_GUARD.

A framework may train as if each rank were alone, without an error, and so make several models. The
guard watches each rank's first optimizer, in a job of several ranks with any backend or none:

    groups have reduced as many elements as it holds    a good job: the guard ends, before the
                                                        first step under DDP, FSDP and ZeRO
    parameters are shards; a rank sends, receives,      ranks hold parts, as in tensor, pipeline
    calls all_to_all, or uses RPC                       and expert parallelism: the guard ends
    shapes differ between ranks                         not copies: quiet
    a framework takes the rank for the only process     the trap: a warning
    values are equal                                    copies in step: quiet
    values differ, and differed before the first step   copies that never were equal: a warning
    every step reduces a thousandth of it               a scheme of the user's own: quiet
    values differ, and were equal before                LocalSGD and DiLoCo look like this until
                                                        their first exchange: a warning only after
                                                        LATE_STEP, or at the end of the job
    WORLD_SIZE is above 1, and no group or communicator the same: a warning after LATE_STEP or at
    was made                                            the end of the job

Ranks compare at step FIRST_STEP, then at twice the step each time, without a collective and without
waiting (`replicas.py`). A correct job costs two calls of a hook in its first step.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from hccl_py.diagnosis.exceptions import exception_at_exit, handled_error
from hccl_py.integrations.frameworks import ANY, Framework, recognise
from hccl_py.integrations.guard.first_step import launched_ranks, replace, silence
from hccl_py.integrations.guard.replicas import (
    Comparison,
    Job,
    Replica,
    are_sharded,
    communicates,
    count_point_to_point,
    job_of_process,
    shapes,
    traffic,
    trained,
    values,
)
from hccl_py.torch_backend.collectives import TorchCollectives
from hccl_py.transport.errors import HcclError, InvalidArgumentError
from hccl_py.transport.process_lifecycle import LifecycleStage, register

VARIABLE = "HCCL_GUARD"
FIRST_STEP = 4
LATE_STEP = 2048
"""More than any usual period of LocalSGD or DiLoCo."""
_STEPS_PER_REDUCTION = 1000
_OFF = f"{VARIABLE}=off turns this check off (docs/frameworks/guard.md)"
_END_S = 2.0
"""Longest wait of rank 0 at the end for ranks that are a few steps behind."""


_uses_rpc: Callable[[], bool] = getattr(rpc, "_is_current_rpc_agent_set", bool)
"""`bool` if torch is built without RPC: `bool()` is False."""


class UnsynchronisedError(HcclError):
    """The ranks of a job train copies of a model that nothing keeps equal (HCCL_GUARD=error)."""


_guard: Guard | None = None


def watch(group: TorchCollectives) -> None:
    """Watch the job of a default group of several ranks anew, unless HCCL_GUARD=off."""
    mode = _mode()
    is_default = not group.options.global_ranks_in_group
    if group.size() > 1 and is_default and not group.supports_reconfigure:
        _start(mode)
        group.before_shutdown = _end


def start(hook: RemovableHandle, *called: Any) -> None:
    """Watch the optimizer whose first step called `hook`, unless the job is watched already."""
    if _guard is None:
        _start(_mode(), hook)
        if _guard is not None:
            _guard.before_step(*called)


def _mode() -> str:
    mode = os.environ.get(VARIABLE) or "warn"
    if mode not in ("off", "warn", "error"):
        raise InvalidArgumentError(f"{VARIABLE}: expected off, warn or error, got {mode!r}")
    return mode


def _start(mode: str, hook: RemovableHandle | None = None) -> None:
    global _guard
    if _guard is not None:
        _guard.leave()
    _guard = Guard(mode == "error", hook) if mode != "off" else None


class Guard:
    """Watches the first optimizer that steps."""

    def __init__(self, raises: bool, hook: RemovableHandle | None) -> None:
        """Wait for the first step of an optimizer; `hook` is replaced by the guard's."""
        self._raises = raises
        # As an earlier step saw them: at exit they may be gone.
        self._job: Job | None = None
        self._communicates = False
        self._steps, self._next_step = 0, 1
        self._optimizer: Any = None
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._shapes = self._at_start = ""
        self._num_held = 0
        self._comparison: Comparison | None = None
        self._has_judged = False  # whether a comparison has a result
        hook = hook or register_optimizer_step_pre_hook(self.before_step)
        replace(hook, self.before_step)
        self._hooks = [hook, register_optimizer_step_post_hook(self._after_step)]
        count_point_to_point()

    def leave(self) -> None:
        """Stop watching."""
        while self._hooks:
            silence(self._hooks.pop())
        self._parameters = []
        self._next_step = sys.maxsize
        if self._comparison is not None:
            self._comparison.stop()
        self._comparison = None

    def leave_to_parent(self) -> None:
        """In a forked child: drop a comparison, whose thread and locks belong to the parent."""
        self._comparison = None
        self.leave()

    def end(self) -> None:
        """Give the late warning if it is due, at a regular end of the group."""
        if not self._hooks:
            return
        comparison, wants = self._comparison, not (exception_at_exit() or handled_error())
        try:
            if comparison is not None:
                comparison.end(_END_S if wants else 0)
            text = self._problem(is_end=True) if wants and self._steps >= FIRST_STEP else ""
        except Exception:  # a failing guard must not fail the job
            text = ""
        self.leave()
        self._report(text)

    def before_step(self, optimizer: Any, *_: object) -> None:
        """Note what the optimizer has, before the first step that is not compiled."""
        if torch.compiler.is_compiling() or self._optimizer is not None:
            return
        try:
            self._optimizer = weakref.ref(optimizer)
            self._begin(trained(optimizer))
        except Exception:
            self.leave()

    def _begin(self, parameters: list[torch.Tensor]) -> None:
        self._num_held = sum(each.numel() for each in parameters)
        if are_sharded(parameters) or _uses_rpc() or self._is_good():
            self.leave()
            return
        self._parameters = [weakref.ref(each) for each in parameters]
        self._shapes, self._at_start = shapes(parameters), values(parameters)

    def _after_step(self, optimizer: Any, *_: object) -> None:
        if torch.compiler.is_compiling() or self._optimizer is None:
            return
        if self._optimizer() is not optimizer:
            return
        self._steps += 1
        if self._steps < self._next_step and (self._has_judged or not self._copies()):
            return
        try:
            text = self._check()
        except Exception:
            self.leave()
            return
        self._report(text)

    def _check(self) -> str:
        """Return the warning, or ""; start a comparison if one is due."""
        self._job = job_of_process() or self._job
        self._communicates = self._communicates or communicates()
        if self._is_good():
            self.leave()
            return ""
        text = self._problem(is_end=False)
        if text:
            self.leave()
            return text
        self._has_judged = bool(self._copies())
        if self._steps >= self._next_step:
            self._next_step *= 2
            if self._steps >= FIRST_STEP:
                self._compare()
        return ""

    def _compare(self) -> None:
        if self._job is None:
            return
        if self._comparison is not None:
            if self._job.rank == 0 and not self._copies():
                return  # the others reach this step later
            self._comparison.stop()
        held = [each for ref in self._parameters if (each := ref()) is not None]
        mine = Replica(self._shapes, self._at_start, values(held), self._reduces_some())
        self._comparison = Comparison(self._job, str(self._steps), mine)
        self._has_judged = False

    def _copies(self) -> list[Replica] | None:
        return self._comparison.copies if self._comparison is not None else None

    def _is_good(self) -> bool:
        counted = traffic()
        return counted.between_parts > 0 or counted.reduced >= self._num_held

    def _reduces_some(self) -> bool:
        return traffic().reduced * _STEPS_PER_REDUCTION >= self._num_held * self._steps

    def _problem(self, is_end: bool) -> str:
        """Return the warning by the last comparison; "" for none."""
        copies = self._copies()
        if self._job is None and (is_end or self._steps >= LATE_STEP):
            return self._text_of_no_group()
        if not copies or self._is_good() or len({each.shapes for each in copies}) > 1:
            return ""
        framework = recognise()
        if framework is None or not framework.works_alone():
            if len({each.now for each in copies}) == 1:
                return ""
            if self._reduces_some() or any(each.reduces_some for each in copies):
                return ""
            never_equal = len({each.at_start for each in copies}) > 1
            if not (never_equal or is_end or self._steps >= LATE_STEP):
                return ""
        return self._text(copies, framework)

    def _text(self, copies: list[Replica], framework: Framework | None) -> str:
        differs = next((rank for rank, each in enumerate(copies) if each.now != copies[0].now), 0)
        seen = f"parameters differ between ranks 0 and {differs}"
        if not differs:
            seen = "each rank trains the same from the same data"
        remedy = ANY
        if framework is not None:
            alone = " and works as if each rank were alone" if framework.works_alone() else ""
            remedy = f"{framework.name} trains here{alone}: {framework.remedy}"
        return (
            f"the ranks train copies of a model that nothing keeps equal: after {self._steps} "
            f"steps of an optimizer that holds {self._num_held} elements, groups have reduced "
            f"{traffic().reduced}, and {seen}; {remedy}. {_OFF}"
        )

    def _text_of_no_group(self) -> str:
        if os.environ.get("RANK", "0") != "0" or self._communicates or communicates():
            return ""
        return (
            f"the ranks train copies of a model that nothing keeps equal: after {self._steps} "
            f"steps of an optimizer, rank 0 of {launched_ranks()} (WORLD_SIZE) has made no group: "
            f'call init_process_group("hccl"), then {ANY}. {_OFF}'
        )

    def _report(self, text: str) -> None:
        if text and self._raises:
            raise UnsynchronisedError(text)
        if text:
            print(f"hccl: warning: {text}", file=sys.stderr, flush=True)


def _end() -> None:
    if _guard is not None:
        _guard.end()


def _end_at_exit() -> None:
    if _guard is not None:
        try:
            _guard.end()
        except UnsynchronisedError as error:
            print(f"hccl: error: {error}", file=sys.stderr, flush=True)
            register(LifecycleStage.LAUNCHER_STORES, at_exit=_fail)


def _fail() -> None:
    sys.stdout.flush()
    os._exit(1)  # an exception cannot change the exit code at this stage


def _leave_to_parent() -> None:
    if _guard is not None:
        _guard.leave_to_parent()


register(LifecycleStage.EXCEPTION, at_exit=_end_at_exit, in_forked_child=_leave_to_parent)
