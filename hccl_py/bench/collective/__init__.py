"""`hccl-bench`: starts its own ranks, checks results, times contenders side by side.

    main        the command: options in, tables and files out; start reading here
    command_line  the options: names, argparse, checks; options: one `Options` for each case
    cases       a `Case` for each collective: its blocks, its expected result, its call
    oracle      input data and the numpy oracle
    contender   the interface of what is measured; contenders: all of them by name
                (over_communicator, over_torch: the two implementations)
    rank        one rank process: runs the functions that the command sends
    ranks       all rank processes, from the command's side: start, ask, failure, end
    job_ranks   the same where this process is a rank of a launcher's job
    measure     the number and order of requests to ranks; results: the evaluated times
    sockets     bytes over plain connections
    analysis    limits, trust, --validate and --profile
    output      tables, CSV, JSON, plots, the live table; counters: what -v prints

The command itself imports no torch, so `--help` is quick; only the rank processes do.
"""
