"""hccl-launch: starts the ranks of a job, on torch.distributed.elastic.

    main      the command; start reading here
    options   torchrun's command line, and whether nodes are emulated
    job       the process that the user sees: forks the agent, passes signals on, prints the report
    agent     elastic in a process of its own, which starts and restarts the ranks of this machine
    worker    runs the script of one rank and records the exception that ends it
    failure   which rank failed first, and the text of the report
    ports     a port for rank 0 after a restart

Rendezvous, restarts, log files and error files are elastic's. Nothing here imports the data path.
"""
