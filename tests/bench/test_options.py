import pytest

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.options import parse, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("4", 4), ("1001", 1001), ("64K", 65536), ("1m", 1048576), ("2G", 2147483648), ("8KB", 8192)],
)
def test_parse_size_good_text_gives_bytes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


def test_parse_range_gives_geometric_sizes_up_to_the_end() -> None:
    assert parse(["--begin", "3", "--end", "1K", "--factor", "10"])[0].sizes == (3, 30, 300)


def test_parse_no_arguments_gives_all_reduce_from_4_bytes_to_64_megabytes() -> None:
    options = parse([])[0]
    assert (options.op, options.reduce_op, options.dtype) == ("all_reduce", "sum", "float32")
    assert options.sizes[0] == 4 and options.sizes[-1] == 64 * 1024**2


def test_parse_nproc_counts_ranks_of_each_node() -> None:
    options = parse(["--nproc", "4", "--nnodes", "2"])[0]
    assert options.world_size == 8
    assert [options.node(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_parse_average_beside_gloo_is_one_of_floats() -> None:
    options = parse(["--reduce-op", "avg", "--compare", "gloo", "--dtype", "bfloat16"])[0]
    assert (options.reduce_op, options.contenders) == ("avg", ("hccl", "gloo"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--op all_redcue", "all_redcue"),
        ("--nproc 0", "at least 1, got '0'"),
        ("--nproc two", "got 'two'"),
        ("--nnodes -1", "got '-1'"),
        ("--sizes 4,,8", "such as 4, 64K or 1M, got ''"),
        ("--sizes 0", "got '0'"),
        ("--sizes 4X", "got '4X'"),
        ("--sizes 4 --begin 8", "not both"),
        ("--begin 8 --end 4", "--begin must not be larger than --end"),
        ("--factor 1", "at least 2, got '1'"),
        ("--op barrier --sizes 4", "barrier has no sizes"),
        ("--dtype complex64", "complex64"),
        ("--reduce-op xor", "xor"),
        ("--reduce-op band", "needs an integer --dtype, got float32"),
        ("--op broadcast --reduce-op sum", "means nothing to broadcast"),
        ("--reduce-op avg --compare gloo --dtype int32", "floating-point numbers only, got"),
        ("--nproc 2 --root 2", "--root must be in 0..1, got 2"),
        ("--veth 1", "--veth joins two nodes: give --nnodes 2"),
        ("--veth 0 --nnodes 2", "at least 1, got '0'"),
        ("--op send_recv --nproc 1", "at least 2 ranks"),
        ("--timeout 0", "positive number of seconds, got '0'"),
        ("--timeout nan", "got 'nan'"),
        ("--iters 0", "at least 1, got '0'"),
        ("--compare mpi", "mpi"),
        ("--json /no/such/folder/x.json", "no folder /no/such/folder"),
        ("--size 4", "unrecognized"),
    ],
)
def test_parse_wrong_arguments_says_so_in_one_line(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parse(arguments.split())
    message = capsys.readouterr().err
    assert left.value.code == 2
    assert complaint in message
    assert message.count("\n") == 1


def test_op_all_measures_every_collective_each_with_options_of_its_own() -> None:
    every = {each.op: each for each in parse(["--op", "all", "--reduce-op", "max"])}
    assert tuple(every) == tuple(CASES)
    assert (every["all_reduce"].reduce_op, every["broadcast"].reduce_op) == ("max", "none")
    assert (every["barrier"].sizes, every["barrier"].dtype) == ((0,), "uint8")
    assert [each.op for each in parse(["--op", "reduce,barrier"])] == ["reduce", "barrier"]
