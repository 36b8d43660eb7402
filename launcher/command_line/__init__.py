"""The command line: torchrun's options under torchrun's names, and more; checked, without torch.

read.py     the entry: from words to `options.JobOptions`
parser.py   what the options are called, and the text of --help
values.py   what their values may be
"""
