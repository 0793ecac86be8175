"""What dispatchers do with jobs: claim one, renew its lease, record its progress, finish or requeue it.

A dispatcher holds a job by a lease that it renews. Each of its writes names the claim (attempt and owner); once another
dispatcher has taken the job over, or the job has ended, that claim matches no row and the write raises Fenced. So a
dispatcher that was asleep for an hour cannot change what others did meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, or_, select, update
from sqlalchemy.engine import Connection

from service.store.clock import now
from service.store.counters import increase
from service.store.embeddings import begin_publishing
from service.store.engine import Database, reading, writing
from service.store.errors import Fenced
from service.store.events import append
from service.store.jobs import as_job
from service.store.records import TERMINAL, Claim, Job, Kind, NewEvent, NewJob, State
from service.store.tables import jobs

_HELD: tuple[State, ...] = ("running", "cancelling")
_CANDIDATES = 8  # queued jobs read at once; of two dispatchers that want the same one, the loser tries the next
_EXPIRED_AT_ONCE = 20
Lease = tuple[str | None, float | None]  # its owner, and when it expires by the database's clock
Unchanged = Callable[[Mapping[str, Lease]], Mapping[str, float]]  # for how many seconds each of them has been like that
_RECORDABLE = frozenset({"progress", "metrics", "relay", "runner", "mlflow_run_id", "tracker_error"})


class Claims:
    """Every method is one transaction. All raise Unavailable where the database does not answer."""

    def __init__(self, database: Database):
        self._database = database

    def claim(
        self, owner: str, *, kinds: Sequence[Kind], lease_seconds: float, free_memory: int | None = None,
        fair: bool = False, longest_pause: float = float("inf"),
    ) -> Job | None:  # fmt: skip
        """Claim the first queued job: highest priority, then oldest. None if there is none, or it does not fit.

        Only jobs that need no memory overtake one that needs more than `free_memory`: others would starve it.

        Args:
            fair: put jobs of the keys with the fewest running jobs of these kinds first, before priority and age.
            longest_pause: a job that is to wait longer was queued before the clock was put back; it waits no more.
        """
        candidates = self._queued(kinds, longest_pause, fair=fair)
        if candidates and not _fits(candidates[0], free_memory):
            candidates = self._queued(kinds, longest_pause, fair=fair, without_memory=True)
        for candidate in candidates:
            if not _fits(candidate, free_memory):
                return None
            with writing(self._database) as connection:
                moment = now(connection)
                values: dict[str, Any] = {
                    "state": "running", "attempt": candidate.attempt + 1, "lease_owner": owner, "runner": None,
                    "lease_expires": moment + lease_seconds, "started": candidate.started or moment,
                }  # fmt: skip
                unchanged = and_(
                    jobs.c.id == candidate.id, jobs.c.state == "queued", jobs.c.attempt == candidate.attempt
                )
                job = _change(connection, unchanged, values, [_state("running", candidate.attempt + 1)])
            if job is not None:
                return job
        return None

    def renew_all(self, owner: str, lease_seconds: float) -> None:
        """Renew the leases of all jobs that a dispatcher holds."""
        with writing(self._database) as connection:
            held = and_(jobs.c.state.in_(_HELD), jobs.c.lease_owner == owner)
            connection.execute(update(jobs).where(held).values(lease_expires=now(connection) + lease_seconds))

    def release(self, claim: Claim) -> None:
        """End the lease, so that another dispatcher can take the job over at once; its process goes on.

        Raises:
            Fenced: the claim no longer holds.
        """
        with writing(self._database) as connection:
            _changed(connection, claim, {"lease_expires": now(connection)})

    def record(self, claim: Claim, events: Sequence[NewEvent] = (), **updates: Any) -> Job:
        """Store events and the columns that follow from them in one transaction.

        Args:
            updates: progress, metrics, relay, runner, mlflow_run_id, tracker_error.

        Raises:
            Fenced: the claim no longer holds.
        """
        unknown = updates.keys() - _RECORDABLE
        if unknown:
            raise TypeError(f"cannot record {', '.join(sorted(unknown))}")
        with writing(self._database) as connection:
            if updates.get("tracker_error") is not None:
                increase(connection, "tracker_errors")
            return _changed(connection, claim, updates, events)

    def finish(
        self, claim: Claim, state: State, *, failure_kind: str | None = None, failure_message: str | None = None,
        result: dict[str, Any] | None = None, publish: NewJob | None = None,
    ) -> Job:  # fmt: skip
        """End the job for good.

        Args:
            publish: the job that publishes the embeddings of this one; queued in the same transaction.

        Raises:
            Fenced: the claim no longer holds, or the job has ended.
        """
        if state not in TERMINAL:
            raise ValueError(f"{state} is not a terminal state")
        failure = None if failure_kind is None else {"kind": failure_kind, "message": failure_message}
        with writing(self._database) as connection:
            values = {
                "state": state, "ended": now(connection), "failure_kind": failure_kind, "result": result,
                "failure_message": failure_message, "lease_owner": None, "lease_expires": None,
            }  # fmt: skip
            job = _changed(connection, claim, values, [_state(state, claim.attempt, failure=failure)])
            if publish is not None:
                begin_publishing(connection, job, publish)
            return job

    def requeue(
        self, claim: Claim, *, delay: float, reason: str, failure_kind: str | None = None, infra_retries: int,
        oom_retries: int,
    ) -> Job:  # fmt: skip
        """Queue the job again, to go on from its newest checkpoint; one that is being cancelled ends here instead.

        Args:
            delay: seconds before it may be claimed, by the database's clock.

        Raises:
            Fenced: the claim no longer holds.
        """
        with writing(self._database) as connection:
            no_lease = {"lease_owner": None, "lease_expires": None}
            counts = {"infra_retries": infra_retries, "oom_retries": oom_retries}
            again = {"state": "queued", "not_before": now(connection) + delay, **counts, **no_lease}
            events = [_state("queued", claim.attempt, reason=reason)]
            is_running = and_(_holds(claim), jobs.c.state == "running")
            job = _change(connection, is_running, again, events)
            if job is not None:
                if failure_kind is not None:
                    increase(connection, f"retries.{failure_kind}")
                return job
            ended = {"state": "cancelled", "ended": now(connection), **no_lease}
            return _changed(connection, claim, ended, [_state("cancelled", claim.attempt, reason=reason)])

    def expire(self) -> list[Job]:
        """Fail jobs that are still queued after their deadline, and return them."""
        with reading(self._database) as connection:
            moment = now(connection)
            late = and_(jobs.c.state == "queued", jobs.c.deadline <= moment)
            waiting = list(connection.execute(select(jobs.c.id, jobs.c.attempt).where(late).limit(_EXPIRED_AT_ONCE)))
        failure = {"kind": "deadline", "message": "the deadline passed while the job was queued"}
        values = {"state": "failed", "failure_kind": failure["kind"], "failure_message": failure["message"]}
        ended = []
        for row in waiting:
            unchanged = and_(jobs.c.id == row.id, jobs.c.state == "queued", jobs.c.attempt == row.attempt)
            with writing(self._database) as connection:
                events = [_state("failed", row.attempt, failure=failure)]
                job = _change(connection, unchanged, {**values, "ended": now(connection)}, events)
            if job is not None:
                ended.append(job)
        return ended

    def take_over(
        self, owner: str, *, lease_seconds: float, host: str, foreign_after: float,
        unchanged_for: Unchanged | None = None,
    ) -> list[Job]:  # fmt: skip
        """Take over jobs whose lease has expired; their attempts and processes stay the same.

        The database's clock may have been set meanwhile. So a lease that nobody renews is over whatever the clock says,
        and one on another host is not over because the clock says so, if it was renewed within `lease_seconds`.

        Args:
            host: our host id. A job on another host is taken over only `foreign_after` seconds after its lease
                expired, when its run has stopped for lack of a heartbeat.
            unchanged_for: for how long, by a clock that nobody sets, we have seen each lease as it is; none: only the
                database's clock counts.
        """
        taken = []
        for job in self._overdue(owner, lease_seconds, host, foreign_after, unchanged_for):
            unchanged = and_(
                jobs.c.id == job.id, jobs.c.state.in_(_HELD), jobs.c.attempt == job.attempt,
                jobs.c.lease_owner == job.lease_owner, jobs.c.lease_expires == job.lease_expires,
            )  # fmt: skip
            with writing(self._database) as connection:
                values = {"lease_owner": owner, "lease_expires": now(connection) + lease_seconds}
                changed = _change(connection, unchanged, values, [])
            if changed is not None:
                taken.append(changed)
        return taken

    def held(self, owner: str) -> list[Job]:
        """All jobs that a dispatcher holds. It may not know of some, if the database failed while answering a claim."""
        with reading(self._database) as connection:
            query = select(jobs).where(jobs.c.state.in_(_HELD), jobs.c.lease_owner == owner)
            return [as_job(row) for row in connection.execute(query)]

    def _queued(
        self, kinds: Sequence[Kind], longest_pause: float, *, fair: bool, without_memory: bool = False
    ) -> list[Any]:
        """The next jobs to claim; `without_memory`: only those that need none."""
        with reading(self._database) as connection:
            moment = now(connection)
            is_due = or_(jobs.c.not_before <= moment, jobs.c.not_before > moment + longest_pause)
            query = (
                select(jobs.c.id, jobs.c.attempt, jobs.c.memory_bytes, jobs.c.started)
                .where(jobs.c.state == "queued", jobs.c.kind.in_(kinds), is_due)
                .order_by(*([_running_of_owner(kinds)] if fair else []), jobs.c.priority.desc(), jobs.c.id)
                .limit(_CANDIDATES)
            )
            if without_memory:
                query = query.where(func.coalesce(jobs.c.memory_bytes, 0) == 0)
            return list(connection.execute(query))

    def _overdue(
        self, owner: str, lease_seconds: float, host: str, foreign_after: float,
        unchanged_for: Unchanged | None,
    ) -> list[Any]:  # fmt: skip
        columns = jobs.c.id, jobs.c.attempt, jobs.c.lease_owner, jobs.c.lease_expires, jobs.c.runner
        with reading(self._database) as connection:
            moment = now(connection)
            query = select(*columns).where(jobs.c.state.in_(_HELD), jobs.c.lease_owner != owner)
            leases = connection.execute(query).all()
        held = {job.id: (job.lease_owner, job.lease_expires) for job in leases}
        ages = {} if unchanged_for is None else unchanged_for(held)
        found = []
        for job in leases:
            age, overdue = ages.get(job.id), moment - job.lease_expires
            if (job.runner or {}).get("host", host) == host:  # at worst its dispatcher lives, and loses it to us
                is_over = overdue > 0 or (age or 0.0) >= 2 * lease_seconds
            elif age is None:
                is_over = overdue >= foreign_after
            else:
                is_over = age >= lease_seconds + foreign_after or (overdue >= foreign_after and age >= lease_seconds)
            if is_over:
                found.append(job)
        return found


def _running_of_owner(kinds: Sequence[Kind]) -> ScalarSelect[int]:
    """How many jobs of these kinds the owner of a queued one has running."""
    running = jobs.alias("running")
    same = func.coalesce(running.c.owner, "") == func.coalesce(jobs.c.owner, "")
    held = and_(running.c.state.in_(_HELD), running.c.kind.in_(kinds), same)
    return select(func.count()).select_from(running).where(held).correlate(jobs).scalar_subquery()


def _fits(candidate: Any, free_memory: int | None) -> bool:
    return free_memory is None or (candidate.memory_bytes or 0) <= free_memory


def _holds(claim: Claim) -> ColumnElement[bool]:
    return and_(
        jobs.c.id == claim.job_id, jobs.c.state.in_(_HELD), jobs.c.attempt == claim.attempt,
        jobs.c.lease_owner == claim.owner,
    )  # fmt: skip


def _changed(connection: Connection, claim: Claim, values: dict[str, Any], events: Sequence[NewEvent] = ()) -> Job:
    job = _change(connection, _holds(claim), values, events)
    if job is None:
        raise Fenced(f"job {claim.job_id}, attempt {claim.attempt}: no longer held by {claim.owner}")
    return job


def _change(
    connection: Connection, condition: ColumnElement[bool], values: dict[str, Any], events: Sequence[NewEvent]
) -> Job | None:
    """Compare and swap; the job as it is now, or None if the condition does not hold."""
    row = connection.execute(
        update(jobs).where(condition).values(last_seq=jobs.c.last_seq + len(events), **values).returning(jobs)
    ).first()
    if row is None:
        return None
    append(connection, row.id, row.last_seq, events)
    return as_job(row)


def _state(state: State, attempt: int, *, reason: str | None = None, failure: dict[str, Any] | None = None) -> NewEvent:
    data: dict[str, Any] = {"state": state, "attempt": attempt}
    return NewEvent("state", data | ({"reason": reason} if reason else {}) | ({"failure": failure} if failure else {}))
