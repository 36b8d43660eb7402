"""A torch without a name that elastic jobs build on."""

from __future__ import annotations

import pytest

from hccl_py.launcher.elastic import torch_names


def test_this_torch_has_every_name() -> None:
    assert torch_names.problem() == ""


@pytest.mark.parametrize(
    "name", ["torch.distributed.run:gone", "torch.gone:name", "torch:Tensor.add.gone"]
)
def test_name_that_is_gone_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_names, "_NAMES", (*torch_names._NAMES, name))
    assert f" has no {name}: elastic jobs were tested with torch 2.13" in torch_names.problem()
