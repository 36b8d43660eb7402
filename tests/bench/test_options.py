from pathlib import Path

import pytest

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.parser import make_parser
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contenders import contenders_of
from hccl_py.bench.collective.options import Options


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ("-b 3 -e 1K -f 10", (3, 30, 300)),
        ("--minbytes 1K --maxbytes 4K --stepbytes 1K", (1024, 2048, 3072, 4096)),
        ("-b 128M", (128 << 20,)),
        ("--size_range 1K 8K", (1024, 2048, 4096, 8192)),
        ("--size_range 1K 8K --size_range_inc 2", (1024, 4096)),
        ("--size 32M", (32 << 20,)),
    ],
)
def test_parse_range_gives_sizes_up_to_the_end(arguments: str, sizes: tuple[int, ...]) -> None:
    assert parse(arguments.split())[0].sizes == sizes


@pytest.mark.parametrize(("text", "mbit"), [("1gbit", 1000), ("2.5Gbit", 2500), ("100mbit", 100)])
def test_parse_rate_reads_tcs_spelling(text: str, mbit: float) -> None:
    assert _parse(f"--nnodes 2 --veth 1 --rate {text}")[0].rate_mbit == mbit


def test_parse_algorithm_is_a_contender_beside_hccl(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import hccl_py\n@hccl_py.algorithm('reduce')\ndef mine(me, n, plan): ...\n")
    parsed = _parse(f"--test reduce --algorithm {file}:mine")
    assert _names(parsed[0]) == ("hccl", "mine.py:mine")


def test_parse_reproducible_is_a_contender_beside_hccl() -> None:
    options = _parse("--reproducible")[0]
    assert (_names(options), options.api) == (("hccl", "reproducible", "exact"), "communicator")


def test_parse_compressions_are_contenders_beside_hccl() -> None:
    assert _names(_parse("--nnodes 2 --compression all")[0]) == ("hccl", "bf16", "int8")
    assert _names(_parse("--nnodes 2 --compression int8")[0]) == ("hccl", "int8")


def test_parse_letters_of_nccl_tests_mean_what_they_mean_there() -> None:
    letters = "-b 8 -e 32 -f 2 -g 3 -n 7 -w 2 -c 0 -d half -o prod -r 2 -a 3 -T 9"
    words = (
        "--minbytes 8 --maxbytes 32 --stepfactor 2 --ngpus 3 --iters 7 --warmup_iters 2 --check 0 "
        "--datatype half --op prod --root 2 --average 3 --timeout 9"
    )
    assert parse(letters.split()) == parse(words.split())
    options = parse(letters.split())[0]
    assert (options.sizes, options.nproc, options.iters) == ((8, 16, 32), 3, 7)
    assert (options.warmup, options.checks, options.average) == (2, 0, 3)
    assert (options.dtype, options.reduce_op, options.root) == ("float16", "product", 2)


def _names(options: Options) -> tuple[str, ...]:
    return tuple(contenders_of(options))


def _parse(text: str) -> tuple[Options, ...]:
    return parse(text.split())


def test_parse_lists_give_every_combination_that_the_collective_knows() -> None:
    every = _parse("--test reduce,broadcast -o all -d float,int8 -r all -g 2 --place both")
    reduces = [each for each in every if each.collective == "reduce"]
    assert len(reduces) == 5 * 2 * 2 * 2 == len(set(reduces))
    assert len(every) - len(reduces) == 2 * 2 * 2
    assert [each.in_place for each in _parse("--test ping_pong,gather")] == [False, False]


def test_parse_pairs_of_ranks() -> None:
    options = _parse("--test send_recv,all_reduce --ranks_list 3,0,1,2 -g 4")
    assert [each.pairs for each in options] == [((3, 0), (1, 2)), ()]
    assert _parse("--test ping_pong -g 5")[0].pairs == ((0, 1), (2, 3))


def test_parse_no_arguments_gives_all_reduce_from_4_bytes_to_64_megabytes() -> None:
    options = parse([])[0]
    assert (options.collective, options.reduce_op, options.dtype) == (
        "all_reduce",
        "sum",
        "float32",
    )
    assert options.sizes[0] == 4 and options.sizes[-1] == 64 * 1024**2


def test_parse_nproc_counts_ranks_of_each_node() -> None:
    options = parse(["--nproc", "4", "--nnodes", "2"])[0]
    assert options.world_size == 8
    assert [options.node(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_parse_tune_has_a_file_and_sizes_of_its_own() -> None:
    options = _parse("--tune -g 4 --tune_check")[0]
    assert (options.tune_path, options.tune_check) == (Path("hccl-tuning.json"), True)
    assert (options.sizes[0], options.sizes[-1], len(options.sizes)) == (8, 16 << 20, 10)
    assert _parse("--tune x.json --sizes 8,4K")[0].sizes == (8, 4096)


def test_help_has_every_option_with_its_value() -> None:
    shown = make_parser().format_help()
    for words in ("--tune [FILE]", "--size_range SIZE SIZE", "-v, --verbose", "below 95 % of"):
        assert words in " ".join(shown.split())


def test_parse_average_beside_gloo_is_one_of_floats() -> None:
    options = parse(["--op", "avg", "--compare", "gloo", "-d", "bfloat16"])[0]
    assert (options.reduce_op, _names(options)) == ("avg", ("hccl", "gloo"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--test all_redcue", "all_redcue"),
        ("--op all_gather", "give --test all_gather"),
        ("--nproc 0", "from 1 to"),
        ("-w -1", "from 0 to"),
        ("-f 0", "from 2 to"),
        ("-g two", "got 'two'"),
        ("--nnodes -1", "got '-1'"),
        ("--sizes 4,,8", "such as 4, 64K or 1M, got ''"),
        ("--sizes 4X", "got '4X'"),
        ("--sizes 4 -b 8", "not both"),
        ("-b 8 -e 4", "must not be larger"),
        ("-f 1", "from 2 to"),
        ("-f 2 -i 8", "give -f or -i"),
        ("--test barrier --sizes 4", "barrier has no sizes"),
        ("-d complex64", "complex64"),
        ("-o xor", "xor"),
        ("-o band", "needs an integer type (-d int32), got float32"),
        ("--test broadcast --op sum", "broadcast has none"),
        ("--compare gloo,mpich", "python -m benchmarks.peers"),
        ("--compare mvapich", "gloo, got 'mvapich'"),
        ("--op avg --compare gloo -d int32", "floating-point numbers only, got"),
        ("--nproc 2 --root 2", "must be in 0..1, got 2"),
        ("--ranks_list 0,1", "needs --test send_recv"),
        ("--test send_recv --ranks_list 0,1,2", "pairs of different ranks"),
        ("--test ping_pong --place in", "does not work with --place in"),
        ("--veth 1", "--veth joins nodes: give --nnodes 2"),
        ("--rate 1gbit --nnodes 2", "--rate limits the links of --veth"),
        ("--rate 1GB/s --nnodes 2 --veth 1", "a rate such as 1gbit or 100 Mbit/s, got '1GB/s'"),
        ("--reproducible --api torch", "--reproducible compares communicators: leave --api"),
        ("--reproducible --test broadcast", "--reproducible is for reductions: broadcast has none"),
        ("--compression int8", "--compression works between nodes: give --nnodes 2"),
        ("--compression fp4 --nnodes 2", "one or more of all, bf16, int8, got 'fp4'"),
        ("--test send_recv --nproc 1", "at least 2 ranks"),
        ("--timeout nan", "positive number of seconds, got 'nan'"),
        (
            "--json /no/such/folder/x.json",
            "no folder /no/such/folder: make it, or name another file",
        ),
        ("--algorithm mine.py:ring", "--algorithm: mine.py: expected a Python file"),
        ("--tune --profile", "writes its own file: leave --profile out"),
        ("--tune --test reduce", "writes its own file: leave --test out"),
        ("--validate --test reduce", "between every pair of ranks and writes"),
        ("--validate -o max", "leave --op out"),
        ("--validate --sizes 4,8", "--validate takes one size: give --sizes 1M"),
        ("--json /tmp", "expected a file to write, got the folder /tmp"),
        ("--plot links", "expected a name that ends in .png, .svg, .pdf, got 'links'"),
        ("-e 1G -i 4", "more than 1000 sizes: give -f, or a larger -i"),
        ("--tune_check", "needs --tune"),
        ("--tune /no/such/folder/x.json", "--tune: there is no folder"),
        ("--step_factor 4", "is it --stepfactor?"),
        ("-G 1", "unrecognized: -G 1"),
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


def test_all_measures_every_collective_each_with_options_of_its_own() -> None:
    every = {each.collective: each for each in parse(["--test", "all", "--op", "max"])}
    assert tuple(every) == tuple(CASES)
    assert (every["all_reduce"].reduce_op, every["broadcast"].reduce_op) == ("max", "none")
    assert (every["barrier"].sizes, every["barrier"].dtype) == ((0,), "uint8")
    assert [each.collective for each in parse(["--test", "reduce,barrier"])] == [
        "reduce",
        "barrier",
    ]
