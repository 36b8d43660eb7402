"""What is in the way of opening an RDMA device, where there is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hccl_py.transport.providers.verbs import library


def test_library_that_is_missing_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_FILE", "libibverbs-that-is-missing.so.1")
    for problem in (library.library_problem(), library.opening_problem("mlx5_0")):
        assert problem is not None
        assert "libibverbs-that-is-missing.so.1" in problem.cause
        assert "apt install ibverbs-providers" in problem.remedy


@pytest.mark.parametrize(
    ("names", "may_open", "text"),
    [
        ([], True, "no driver for it; apt install ibverbs-providers"),
        (["mlx5_0"], False, "--device /dev/infiniband"),
        (["mlx5_0"], True, ""),
    ],
)
def test_device_that_cannot_be_opened_says_why(
    names: list[str], may_open: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_load", SimpleNamespace)
    monkeypatch.setattr(library, "_names", lambda _: names)
    monkeypatch.setattr(library, "may_open", lambda _: may_open)
    problem = library.opening_problem("mlx5_0")
    assert (text in str(problem)) if text else (problem is None)
