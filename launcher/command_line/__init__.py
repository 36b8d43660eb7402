"""The command line: torchrun's options under their names, and more; checked without torch.

read.py     the entry: from words to `options.JobOptions`
parser.py   the names of the options, and the text of --help
values.py   their permitted values
"""
