"""From the queue to a finished job: claim, start through a runner, watch, relay, decide (design section 5).

runner.py      what is started, and what became of it: the interface to the place where jobs run
keeper.py      the process that a runner really starts; it starts the trainer and leaves an outcome in any case
local.py       the keeper as a process of this machine;  ray.py: as a job of a Ray cluster
orders.py      the command for a job
relay.py       from the run's events to rows, each once
rules.py       what follows from an outcome: the end, or another attempt
dispatcher.py  the loop;  care.py: one attempt in its hands
leases.py      what a dispatcher holds, kept by a thread;  brake.py: when nothing is claimed
supervisor.py  API and dispatcher together
"""
