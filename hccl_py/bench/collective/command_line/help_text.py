"""What `hccl-bench --help` says before and after the options."""

DESCRIPTION = """\
Measure collectives over ranks that this command starts on this machine.

The options are those of nccl-tests; --test, --measure, --size_range and --ranks_list are those of
hccl_demo. A row is one size: size (bytes of a rank's larger buffer), count (elements of one
rank's block), type, op, root, time, algbw = size / time, busbw = algbw x factor (all_reduce
2(n-1)/n; reduce_scatter, all_gather, all_to_all, gather, scatter (n-1)/n; broadcast, reduce,
send_recv 1), GB = 10^9 bytes, and wrong: elements that differ from a numpy oracle in runs of
their own, which are not timed."""

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
  hccl-bench -g 2 --registered --sizes 64M           what registered memory is worth
  hccl-bench --test all -g 4 --csv > all.csv         every collective, for a spreadsheet
  hccl-bench -g 8 --validate --plot links.png        is every pair of ranks as fast as the others?
  hccl-bench -g 8 --tune tuning.json                 then HCCL_TUNING=tuning.json for the jobs
  hccl-bench --test ping_pong --ranks_list 0,3 -g 4  latency and bandwidth between two ranks

exit codes: 0 good, 1 wrong results, a slow link or a rank failed, 2 wrong arguments"""
