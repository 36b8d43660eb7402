"""`hccl-bench`: starts its own ranks, checks results, times contenders side by side.

    main        the command: options in, tables and JSON out; start reading here
    options     command line -> one `Options` for each collective
    cases       what a collective is to a benchmark: four hooks
    oracle      input data and the numpy oracle
    contender   what is measured: the interface; contenders: the table of those there are
                (torch_contender, communicator_contender: the two implementations)
    messages    what passes between the command and its ranks
    rank        one rank process: does as it is asked
    ranks       all rank processes, seen from the command: start, ask, failure, end
    measure     how often and in which order ranks are asked, and what comes of the times
    report      rows, Markdown, CSV, JSON; counters: what -v prints

The command itself imports no torch, so `--help` is quick; only the rank processes do.
"""
