"""How our processes start, stop and say how they ended; without torch.

parent_death.py      a child ends when its parent dies
stop_signals.py      SIGTERM and SIGINT as a request that a loop can check
outcome.py           how a command that failed tells the process that started it why
document_command.py  a command that carries out one JSON document
home.py, threads.py, version.py   where files are kept, how threads wait, which code runs
"""
