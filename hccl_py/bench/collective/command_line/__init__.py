"""The command line of `hccl-bench`.

read          a command line in, one `Options` out for each case; start reading here
option_text   the options, as --help shows them; parser: what they read
combinations  sizes of a range, and checks of how options go together
"""
