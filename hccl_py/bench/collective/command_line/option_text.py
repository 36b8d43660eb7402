"""The text of `hccl-bench --help`; `parser` makes the options from it."""

DESCRIPTION = """\
Measure collectives over ranks that this command starts on this machine.

The options are those of nccl-tests; --test, --measure, --size_range and --ranks_list are those of
hccl_demo. A row is one size: size (bytes of a rank's larger buffer), count (elements of one
rank's block), type, op, root, time, algbw = size / time, busbw = algbw x factor (all_reduce
2(n-1)/n; reduce_scatter, all_gather, all_to_all, gather, scatter (n-1)/n; broadcast, reduce,
send_recv 1), GB = 10^9 bytes, and wrong: elements that differ from a numpy oracle in runs of
their own, which are not timed."""

OPTIONS = """\
what is measured
  --test LIST
    all, or any of {tests}, with commas between them (all_reduce)
  --validate
    measure every pair of ranks instead, show the matrix, and exit with 1 and the names of links
    below 95 % of the median of their class (inside a node, between nodes)
  --tune FILE
    measure every algorithm instead, in less than 60 s, and write FILE (hccl-tuning.json), which
    HCCL_TUNING=FILE makes communicators choose by; also as a program under hccl-launch
  --tune_check
    with --tune: measure again at twice the sizes, and compare the chosen algorithms with the best
  --list_tests
    print the names that --test takes and exit
  -g --ngpus --nproc --nproc-per-node --ranks_per_node N
    ranks on each node (2)
  --nnodes N
    emulated nodes (1): -g x nnodes ranks; nodes share no memory and talk TCP
  --veth LINKS
    put the nodes into network namespaces joined by virtual Ethernet links, as hosts: TCP then goes
    through two network stacks instead of loopback; needs root
  --rate RATE
    limit each link of --veth in both directions, e.g. 1gbit or 100mbit (tc's tbf)
  -d --datatype --data_type LIST
    element type, all or any of {types} (float)
  -o --op --reduction_op LIST
    reduction, all or any of sum, prod, min, max, avg, band, bor, bxor (sum)
  -r --root --test_root LIST
    roots, for collectives that have one: ranks, or all (0)
  --place WHERE
    in: one buffer for input and output; out: one for each; both: out, then in
    (in for all_reduce, broadcast and reduce, out for the rest, as torch calls them)
  --ranks_list A,B,...
    send_recv and ping_pong: from rank A to B, and so on in pairs (send_recv: from each rank to the
    next; ping_pong: 0,1,2,3 and so on)

sizes
  -b --minbytes SIZE
    first size, such as 64K (4)
  -e --maxbytes SIZE
    last size (64M)
  -f --stepfactor N
    multiply by this from one size to the next (16)
  -i --stepbytes SIZE
    add this to the size instead
  --size_range SIZE
    the first and the last size, as -b MIN -e MAX -f 2
  --size_range_inc M
    with --size_range: multiply by 2^M instead (1)
  --sizes --size LIST
    these sizes, such as 4,64K,1M

how it is measured
  --api NAME
    call hccl through torch (torch.distributed, default) or communicator (hccl_py.Communicator;
    default where torch is not installed)
  --compare LIST
    measure gloo beside hccl, in turns in the same processes (MPICH, Open MPI and UCC: python -m
    benchmarks.peers in a checkout)
  --compression LIST
    measure hccl with this compression between nodes beside hccl: bf16, int8 or both
  --reproducible
    measure hccl with HCCL_REPRODUCIBLE=1, and with exact, beside hccl; implies --api communicator
    (docs/api/reproducible.md, exact.md)
  --algorithm FILE:FUNCTION
    measure hccl with this algorithm of your own beside hccl (docs/internals/algorithms.md); several
    with commas between them
  --registered
    measure hccl on registered memory (hccl_py.empty) beside hccl on other memory
  --measure WHAT
    bw: calls back to back (default); latency: a barrier before each call, the time of a call is
    that of its slowest rank
  --profile
    below each size, where the time of a call goes: late ranks, copy, reduce, wire, data in transit,
    Python; implies --api communicator and slows small calls down a little
  -n --iters --loop N
    timed calls per size (about 1 s of them)
  -w --warmup_iters N
    untimed calls that open each round (a tenth of the timed ones, at least one)
  -c --check N
    checked calls per size, 0 for none (1)
  --no_correctness
    as -c 0
  -a --average N
    time of a round: 0 of rank 0, 1 mean over the ranks (default), 2 least, 3 most
  -T --timeout S
    seconds after which the run fails (600)

output
  --json PATH
    write machine, versions, command and results
  --markdown
    print the tables as Markdown
  --csv
    print comma-separated values with one header line
  -F --output_file --result_csv PATH
    write comma-separated values to a file as well
  --plot PNG
    draw time and busbw against size
  -v --verbose
    print rank 0's statistics at the end
"""

EPILOG = """\
how time is taken:
  A round is a barrier, some untimed calls, then calls back to back with no barrier between
  them. Its time is the mean over its calls and over the ranks (as in nccl-tests, see -a); the
  table shows the median over the rounds. With --compare or --registered the contenders' rounds
  alternate in the same processes. ratio is the contender's median over that of the first row,
  hccl or hccl on registered memory (above 1: the first is faster), its spread that of
  neighbouring rounds. Buffers hold zeros while time is taken.

examples:
  hccl-bench -b 8 -e 128M -f 2 -g 8                  as all_reduce_perf of nccl-tests
  hccl-bench --test all_gather --size_range 1K 64M   as hccl_demo
  hccl-bench -g 8 --compare gloo --sizes 4,64K,1M,64M --json all_reduce.json
  hccl-bench -g 4 --nnodes 2 --compare gloo          8 ranks on two emulated nodes, over TCP
  hccl-bench -g 4 --nnodes 2 --veth 1 --compare gloo the nodes joined by Ethernet (root)
  hccl-bench -g 4 --nnodes 2 --veth 1 --rate 1gbit --compression bf16,int8 -b 16M -e 64M -f 4
  hccl-bench -g 2 --api communicator --sizes 4       without torch.distributed
  hccl-bench -g 2 --registered --sizes 64M           with registered memory and without
  hccl-bench --test all -g 4 --csv > all.csv         every collective, for a spreadsheet
  hccl-bench -g 8 --validate --plot links.png        is every pair of ranks as fast as the others?
  hccl-bench -g 8 --tune tuning.json                 then HCCL_TUNING=tuning.json for the jobs
  hccl-bench --test ping_pong --ranks_list 0,3 -g 4  latency and bandwidth between two ranks

exit codes: 0 good, 1 wrong results, a slow link or a rank failed, 2 wrong arguments"""
