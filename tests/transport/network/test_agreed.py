"""The table of settings: complete, and every difference that matters is named."""

import re
from pathlib import Path

import pytest

from hccl_py.transport.network.agreed import COMPARED, SETTINGS, Rule, differences, given

ROOT = Path(__file__).parents[3]
ARGUMENTS = {"algorithms"}
"""Rows without a variable."""


def variables_of_the_sources() -> set[str]:
    """Return each whole string `HCCL_...` of Python, and each that C++ reads."""
    found: set[str] = set()
    for folder in ("hccl_py", "transport", "launcher"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "agreed.py":
                found.update(re.findall(r"[\"'](HCCL_[A-Z0-9_]+)[\"']", path.read_text()))
        for suffix in ("cc", "h"):
            for path in (ROOT / folder).rglob(f"*.{suffix}"):
                found.update(re.findall(r"getenv\(\"(HCCL_\w+)\"", path.read_text()))
    return found


def test_settings_every_variable_of_the_sources_has_a_row_and_no_row_is_left_over() -> None:
    missing = variables_of_the_sources() - SETTINGS.keys()
    assert not missing, f"say in transport/network/agreed.py whether ranks need the same: {missing}"
    assert SETTINGS.keys() - ARGUMENTS == variables_of_the_sources()


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_differences_name_setting_values_and_ranks(name: str) -> None:
    told = differences([{}, {}, {name: "x"}])
    assert name in told and "not set on ranks 0, 1" in told and "'x' on rank 2" in told
    assert not differences([{name: "x"}] * 3)


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_differences_rank_0_alone_decides_where_its_value_counts(name: str) -> None:
    is_equal = not differences([{name: "x"}, {}])
    assert is_equal == (SETTINGS[name].rule is Rule.AS_RANK_0)


def test_given_counts_what_is_unset_as_its_default_and_cuts_what_is_long() -> None:
    assert given({}, {"HCCL_GUARD": ""}) == given({}, {"HCCL_GUARD": "warn"})
    one, other = (given({"HCCL_ALGORITHM": f"{'x' * 999}{end}"}, {}) for end in "ab")
    assert len(one["HCCL_ALGORITHM"]) < 256
    assert "HCCL_ALGORITHM" in differences([one, other])


def test_differences_of_many_ranks_stay_one_line() -> None:
    told = differences([{"HCCL_TLS": str(rank % 2)} for rank in range(1000)])
    assert "and 492 more" in told and len(told) < 200
