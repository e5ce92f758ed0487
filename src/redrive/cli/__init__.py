"""The command `redrive`, and `python -m redrive`.

`main.py` has the table of commands, and `command_groups.py` those of `redrive queue`, `redrive dead` and `redrive
capture`. Each command or family has a file in `commands/`; the other files have the parts that these share.
"""
