"""`hccl-bench`: starts its own ranks, checks results, times contenders side by side.

    main        the command: options in, tables and files out; start reading here
    command_line  the options: names, argparse, checks; options: one `Options` for each case
    cases       what a collective is to a benchmark: its hooks
    oracle      input data and the numpy oracle
    contender   what is measured: the interface; contenders: the table of those there are
                (torch_contender, communicator_contender: the two implementations)
    messages    what passes between the command and its ranks
    rank        one rank process: does as it is asked
    speeds      what a rank measures of its machine
    ranks       all rank processes, seen from the command: start, ask, failure, end
    measure     how often and in which order ranks are asked, and what comes of the times
    analysis    limits, trust, --validate and --profile
    output      tables, CSV, JSON, plots, the live table; counters: what -v prints

The command itself imports no torch, so `--help` is quick; only the rank processes do.
"""
