"""The command line of `hccl-bench`.

read          a command line in, one `Options` out for each case; start reading here
option_text   the options, as --help shows them; parser: what they read
sizes         the sizes that a range asks for
combinations  checks of how options go together
"""
