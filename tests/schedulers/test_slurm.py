"""Slurm's two ways to write lists. The names are what `scontrol show hostnames` printed."""

import pytest

from hccl_py.schedulers.slurm import parse_node_list, parse_tasks_per_node

NODE_LISTS = {
    "login": "login",
    "a[1-3,07-09],b": "a1 a2 a3 a07 a08 a09 b",
    "c[1-2]-ib[0-1]": "c1-ib0 c1-ib1 c2-ib0 c2-ib1",
    "n[098-101]": "n098 n099 n100 n101",
    "n[8-11],gpu-a[1,3].cluster": "n8 n9 n10 n11 gpu-a1.cluster gpu-a3.cluster",
    "127.0.0.[1-2]": "127.0.0.1 127.0.0.2",
}


@pytest.mark.parametrize("text", NODE_LISTS)
def test_node_list_is_expanded_in_order(text: str) -> None:
    assert parse_node_list(text) == tuple(NODE_LISTS[text].split())


TOO_MANY = ("a[1-9999999999]", "a[1-60000][1-60000]")


@pytest.mark.parametrize(
    "text", ["", "a[1-3", "a]1[", "a[]", "a[1-]", "a,,b", "a[x]", "a[1[2]]", *TOO_MANY]
)
def test_no_node_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_node_list(text)


def test_tasks_per_node_are_counted() -> None:
    assert parse_tasks_per_node("2(x3),1") == (2, 2, 2, 1)
    assert parse_tasks_per_node("16") == (16,)
    for wrong in ("", "2(x)", "2,", "2(y3)", "2(x9999999999)"):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_tasks_per_node(wrong)
