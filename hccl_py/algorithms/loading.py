"""Algorithms named by their location: `mine.py:mine`, a function in a file, or `plan:FILE`."""

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import util
from pathlib import Path

from hccl_py.algorithms.choice.tuner import VARIABLE, items, overrides
from hccl_py.algorithms.custom import PLANS, CustomAlgorithm
from hccl_py.algorithms.plan_file import loaded_plans
from hccl_py.transport.arguments import wrong
from hccl_py.transport.errors import InvalidArgumentError


def in_effect(
    given: Iterable[CustomAlgorithm], environ: Mapping[str, str] = os.environ
) -> tuple[CustomAlgorithm, ...]:
    """Return the algorithms of `HCCL_ALGORITHM`, then the given ones that it does not override.

    Raise InvalidArgumentError if a file, a function or a collective is wrong.
    """
    text = environ.get(VARIABLE, "")
    named = [loaded(place, owner) for owner, place in items(text) if ":" in place]
    taken = {one.collective for one in named} | set(overrides(text))
    for one in given:
        if not isinstance(one, CustomAlgorithm):
            raise wrong("algorithms", "functions under @hccl_py.algorithm(...)", one)
    return (*named, *(one for one in given if one.collective not in taken))


def loaded(place: str, collective: str | None = None) -> CustomAlgorithm:
    """Return the algorithm `path/to/mine.py:mine` or `plan:FILE`, which must be for `collective`.

    Raise InvalidArgumentError: there is no such file or function, or the file raised.
    """
    found = loaded_plans(place) if place.startswith(PLANS) else _of_function(place)
    if collective not in (None, found.collective):
        problem = f"{place}: expected an algorithm of {collective}, got one of {found.collective}"
        raise InvalidArgumentError(problem)
    return found


def _of_function(place: str) -> CustomAlgorithm:
    path, _, function = place.rpartition(":")
    names = _algorithms_of(Path(path).resolve())
    if function not in names:
        there = ", ".join(names) or "none"
        raise InvalidArgumentError(
            f"{place}: expected a function under @hccl_py.algorithm(...), {path} has: {there}"
        )
    return names[function]


@lru_cache
def _algorithms_of(path: Path) -> dict[str, CustomAlgorithm]:
    spec = util.spec_from_file_location(f"hccl_algorithms_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidArgumentError(f"{path.name}: expected a Python file, {path} cannot be read")
    module = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InvalidArgumentError(f"{path}: {type(error).__name__}: {error}") from error
    return {name: one for name, one in vars(module).items() if isinstance(one, CustomAlgorithm)}
