"""The command line of `hccl-bench`.

read          a command line in, one `Options` out for each case; start reading here
vocabulary    names: those of nccl-tests, of hccl_demo and of torch
parser        the options as argparse knows them; help_text: what stands round them
sizes         the sizes that a range asks for
combinations  checks of how options go together
"""
