"""From the queue to a finished job: claim, start through a runner, watch, relay, decide (design section 5).

dispatcher.py     the loop
attempt.py        one attempt at a job, from its start to what follows from its end
leases.py         keeps the dispatcher's leases and heartbeats alive from a thread
start_backoff.py  pauses claiming after a failed start, or while the disk is nearly full
job_commands.py   the command, environment and limits of a job: its launch spec
runner.py         the interface to where jobs run, and the files of an attempt
shim.py           the process that a runner starts; it starts the trainer and records how it ended, in any case
local.py          the shim as a process of this machine;  ray.py: as a job of a Ray cluster
relay.py          from the run's events to rows, each once
retry_policy.py   what follows from an outcome: the end, or another attempt
supervisor.py     API and dispatcher together
"""
