"""The command `redrive`, and `python -m redrive`.

`main.py` has the table of commands. A file with the name of a command has it, or is the group of that name, as
`queue.py` and `dead.py` are: tables that say where their commands are. Those of queues are in `queues.py`, of dead
letters in `letters.py` (to look) and `reviving.py` (to change), of single items in `items.py`; the other files have
what these share.
"""
