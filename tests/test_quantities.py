"""The reader of sizes, rates and times."""

import pytest

from hccl_py.quantities import RATE, SIZE, TIME, Kind, read_quantity, read_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4", 4),
        ("1001", 1001),
        ("64K", 65536),
        (" 1m ", 1048576),
        ("2G", 2147483648),
        ("8KB", 8192),
        ("8 kib", 8192),
        ("1.5K", 1536),
    ],
)
def test_read_size_gives_bytes(text: str, num_bytes: int) -> None:
    assert read_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-4", "4X", "K", "1.5", "4 8", "1e3", "²", None, 4])
def test_read_size_rejects_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="expected .* got"):
        read_size(text)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1gbit", RATE, 1e9),
        ("2.5 Gbit/s", RATE, 2.5e9),
        ("100 KBIT", RATE, 1e5),
        ("1 Tbit/s", RATE, 1e12),
        ("50us", TIME, 5e-5),
        ("2 ms", TIME, 2e-3),
        ("3 s", TIME, 3.0),
        ("1 MiB", SIZE, 1 << 20),
    ],
)
def test_read_quantity_gives_bits_per_second_seconds_and_bytes(
    text: str, kind: Kind, value: float
) -> None:
    assert read_quantity(text, kind) == pytest.approx(value, rel=1e-12)
