"""
Several workers against a plain model of the queue and the ledger, under a clock that is set ahead and back.

Three workers claim, call, commit, fail, meet with trouble, give up, die and come late, through two handles on one file,
while turns are sealed, history is imported, nodes are repaired and handles are closed and opened. A worker is whoever
holds tasks: what a late one still holds, it may hand in at any time. The model knows which lease is whose; all that is
stored must follow from it.

After every step, by the invariants' names:

- *Once*: every node is inserted once, and its text stands; no job is done twice; every publication is of another turn.
- *Fenced*: a result is taken if and only if its lease is the job's last one, and what it was made of is as it was.
- *Bounded*, *Cover*: what ``verify`` says of views; and its every other check.
- *Honest*: what a shared node says was not completed is what the turns' outcomes say, at every level.
- *Durable*: another handle, which knows the file alone, sees the same.
- No job is lost: each long leaf, each merge whose place is complete, each ended turn has its node or its job.
- Under the ceilings: at no moment have calls taken more than a ceiling allows, within its window; and the ledger has a
  row for each call that began, and no other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from attrs import define, evolve, frozen
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import optchat
from optchat.core.compactor_view import rooms
from optchat.core.errors import InputsChanged
from optchat.core.grouping import TranscriptTurn
from optchat.core.ledger import HOUR_SECONDS, Need
from optchat.core.lineage import node_key
from optchat.core.messages import OUTCOMES
from optchat.core.prompts import PROMPT_VERSION
from optchat.core.refs import KEY_BITS, KEY_MASK, Span, completed_by, exact_cover, span_of_post_order
from optchat.core.tree import Recipe
from optchat.core.trouble import Trouble
from optchat.engine import calls, remaking, work
from optchat.engine.calls import Finished, Start
from optchat.engine.handle import microseconds
from optchat.engine.history import import_turns
from optchat.engine.indexing import index_step
from optchat.engine.inputs import Task
from optchat.memory.opening import open_with
from optchat.store import queue
from optchat.testing import DeterministicSummarizer
from tests.engine.working import NAME, WanderingClock, ended, summary

SECOND_US = 1_000_000
LEASE_SECONDS = 60.0
WINDOW_TOKENS = 5_000  # a text of some kilobytes is cut into pages
POLICY = optchat.Policy(
    node_bytes=64,
    view_high_bytes=700,
    view_low_bytes=300,
    compactor_view_bytes=400,
    lease_seconds=LEASE_SECONDS,
    job_attempts=2,
    leaf_window=2,
    calls_per_hour=9,
    tokens_per_hour=500,
    cost_per_day=3.0,
)
CEILINGS = (("calls", HOUR_SECONDS, 9.0), ("tokens", HOUR_SECONDS, 500.0), ("cost", 24 * HOUR_SECONDS, 3.0))
KEYS = ("a", "b", "c")
WORKERS = ("w0", "w1", "w2")
AT = datetime(2025, 6, 1, tzinfo=UTC)

handles = st.sampled_from((0, 1))
workers = st.sampled_from(WORKERS)
numbers = st.integers(0, 50)
texts = st.sampled_from(("yes", "no, not that", "a longer text about the queue and its broker, ", "漢字 <&> ")).map(
    lambda piece: piece if len(piece) < 15 else piece * 4
)
outcomes = st.sampled_from(OUTCOMES)


@define(eq=False)
class CallModel:
    """A call as it was begun, and what was reported of it."""

    pk: int
    at: int
    need: Need
    reported: Need | None = None
    outcome: str = "started"

    def amount(self, measure: Any) -> float:
        if self.reported is None or measure == "calls":
            return self.need.of(measure)
        return self.reported.of(measure)


@define(eq=False)
class Held:
    """A task in a worker's hands, wanted or not, and the call that it has begun."""

    task: Task
    worker: str
    call: CallModel | None = None

    @property
    def name(self) -> tuple[int, int]:
        return self.task.job.job_pk, self.task.job.fence


@frozen
class LeaseModel:
    """A lease that the queue must have: until when, and whether its holder lives."""

    until: int
    alive: bool = True


class WorkersMachine(RuleBasedStateMachine):
    """Rules are what workers and hosts do; invariants are what must hold whoever did it."""

    @initialize(on_failed=st.sampled_from(("stand_in", "stop")))
    def begin_life(self, on_failed: Any) -> None:
        self.folder = Path(mkdtemp(prefix="optchat-workers-"))
        self.clock = WanderingClock()
        self.policy = evolve(POLICY, on_failed=on_failed)
        self.open_handles: dict[int, optchat.Memory] = {}
        self.open_turn: dict[str, optchat.Turn[optchat.HostMessage]] = {}
        self.outcomes: dict[int, str] = {}  # by turn: how it ended
        self.count = 0
        self.hands: list[Held] = []
        self.leases: dict[int, tuple[int, LeaseModel]] = {}  # by job: the fence that its result is taken by
        self.calls: dict[int, CallModel] = {}
        self.done: set[int] = set()  # jobs whose result was taken
        self.seen: dict[tuple[int, int], str] = {}  # texts by node and revision
        self.dead_owner: int | None = None
        self.step = 0
        self.looked: object = None
        for key in KEYS:
            self.says("turn", key, 0, ["a longer text about the queue and its broker, " * 4] * 2, "failed")
        self.says("large", "", 0, [], "completed")

    # ---- handles -----------------------------------------------------------------------------------------------------

    def handle(self, number: int) -> optchat.Memory:
        if number not in self.open_handles:
            # An open ends the leases that are over. Where this process had the file not open, it held no byte of the
            # lock file either: then its leases are a dead process's, too.
            over = self.leases_over() if self.open_handles else list(self.leases)
            for job in over:
                del self.leases[job]
            self.open_handles[number] = open_with(
                self.folder / "memory.db",
                scope="one",
                summarizer=DeterministicSummarizer(),
                tokenizer=None,
                policy=self.policy,
                background=False,
                mode="rwc",
                clock=self.clock,
            )
        return self.open_handles[number]

    def rows(self, sql: str, **bindings: Any) -> list[tuple[Any, ...]]:
        with self.handle(0)._scope.store.read() as db:
            return list(db.execute(sql, bindings))

    @property
    def now(self) -> int:
        return microseconds(self.clock.now())

    def text(self, body: str) -> str:
        self.count += 1
        return f"note {self.count} {body}"

    # ---- what hosts do -----------------------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from(("turn", "turn", "open", "end", "history", "large")),
        key=st.sampled_from(KEYS),
        number=handles,
        said=st.lists(texts, min_size=1, max_size=5),
        outcome=outcomes,
    )
    def says(self, what: str, key: str, number: int, said: list[str], outcome: Any) -> None:
        memory = self.handle(number)
        if what == "large":
            memory.session("large").note(self.text("x y z " * 1_500))
        elif what == "history":
            turns = [
                TranscriptTurn(f"old-{place}", (optchat.HostMessage.user(self.text(body), at=AT),), True, outcome)
                for place, body in enumerate(said)
            ]
            import_turns(memory._scope, memory.session(f"history-{self.count}")._row, turns)
        elif what == "end" and key in self.open_turn:
            self.open_turn.pop(key).end(outcome)
        else:
            if key in self.open_turn:
                self.open_turn.pop(key).end("interrupted")
            turn = memory.session(key).turn(self.text(said[0]))
            for body in said[1:]:
                turn.assistant(self.text(body))
            if what == "open":
                self.open_turn[key] = turn
            else:
                turn.end(outcome)

    # ---- what workers do ---------------------------------------------------------------------------------------------

    @rule(worker=workers, number=handles, limit=st.integers(1, 4))
    def claims(self, worker: str, number: int, limit: int) -> None:
        self.claim(worker, number, limit)

    @precondition(lambda self: not self.hands)
    @rule(
        number=handles, limit=st.integers(1, 2), share=st.sampled_from((None, 0, 30, 100)), tokens=st.integers(1, 100)
    )
    def one_is_well(self, number: int, limit: int, share: int | None, tokens: int) -> None:
        """A worker that nothing happens to: it claims, calls and commits."""
        before = list(self.hands)
        self.claim("w0", number, limit)
        mine = [held for held in self.hands if held not in before]
        for held in mine:
            self.begin(held, number, Need(tokens))
        self.commit([held for held in mine if held.call is not None], number, share)

    def claim(self, worker: str, number: int, limit: int) -> int:
        """How many jobs there were; also those that became pages, and those of the index."""
        scope = self.handle(number)._scope
        claimed = work.claim(scope, summarizer=NAME, is_default=False, window_tokens=WINDOW_TOKENS, limit=limit)
        until = self.now + int(LEASE_SECONDS * SECOND_US)
        for job in claimed.jobs:
            assert job.job_pk not in self.done, "a job that is done does not come back"
            assert job.job_pk not in self.leases, "what is leased is not claimed"
            assert all(job.fence > held.task.job.fence for held in self.hands if held.task.job.job_pk == job.job_pk)
        for task in claimed.tasks:
            self.leases[task.job.job_pk] = task.job.fence, LeaseModel(until)
            self.hands.append(Held(task, worker))
        for job in claimed.indexing:
            index_step(scope, job)
        return len(claimed.jobs)

    def pick(self, number: int, hands: list[Held] | None = None) -> Held:
        hands = self.hands if hands is None else hands
        return hands[number % len(hands)]

    def is_held(self, held: Held) -> bool:
        return self.leases.get(held.task.job.job_pk, (None,))[0] == held.task.job.fence

    def drop(self, held: Held, *, late: bool = False) -> None:
        """The lease is over, and the worker lets go, unless it is one that comes again later."""
        if self.is_held(held):
            del self.leases[held.task.job.job_pk]
        if not late:
            self.hands.remove(held)

    @precondition(lambda self: any(held.call is None for held in self.hands))
    @rule(
        which=numbers,
        number=handles,
        tokens=st.integers(1, 300),
        cost=st.sampled_from((None, 0.3, 1.1)),
        every=st.booleans(),
    )
    def begins_a_call(self, which: int, number: int, tokens: int, cost: float | None, every: bool) -> None:
        waiting = [held for held in self.hands if held.call is None]
        for held in waiting if every else [self.pick(which, waiting)]:
            self.begin(held, number, Need(tokens, cost))

    def begin(self, held: Held, number: int, need: Need) -> None:
        scope, now = self.handle(number)._scope, self.now
        started = calls.begin(scope, Start(held.task.job, 1, None, NAME, need))
        if isinstance(started, int):
            assert self.is_held(held)
            assert self.paused_by_trouble() is False
            held.call = self.calls[started] = CallModel(started, now, need)
            assert self.has_room(now), "it began above a ceiling"
            self.renewed(held)
        elif started == "lease":
            assert not self.is_held(held)
            self.hands.remove(held)
        elif started == "trouble":
            assert self.paused_by_trouble()
            self.renewed(held)
        else:
            assert not self.has_room(now, need), "it was stopped where there was room"
            self.renewed(held)

    def renewed(self, held: Held) -> None:
        fence, lease = self.leases[held.task.job.job_pk]
        self.leases[held.task.job.job_pk] = fence, evolve(lease, until=self.now + int(LEASE_SECONDS * SECOND_US))

    def has_room(self, now: int, need: Need | None = None) -> bool:
        """Whether the model's calls, and one more, are under every ceiling."""
        for measure, seconds, limit in CEILINGS:
            counted = [call.amount(measure) for call in self.calls.values() if call.at > now - seconds * SECOND_US]
            if sum(counted) + (0 if need is None else need.of(measure)) > limit + 1e-9:  # type: ignore[arg-type]
                return False
        return True

    def paused_by_trouble(self) -> bool:
        found = self.rows("SELECT until FROM pause WHERE cause = 'trouble'")
        return bool(found) and found[0][0] > self.now

    def finish(self, held: Held, outcome: Any, share: int | None) -> list[Finished]:
        """What became of the call that a task has begun; ``share`` of what was reserved is reported."""
        call, held.call = held.call, None
        if call is None:
            return []
        call.outcome = outcome
        if share is None or outcome not in calls.ANSWERED:
            return [ended(call.pk, outcome)]
        used = call.need.tokens * share // 100
        cost = None if call.need.cost is None else call.need.cost * share / 100
        call.reported = Need(used, call.need.cost if cost is None else cost)
        return [ended(call.pk, outcome, used, 0, cost)]

    @precondition(lambda self: self.hands)
    @rule(which=numbers, number=handles, share=st.sampled_from((None, 0, 30, 100)), more=st.booleans())
    def commits(self, which: int, number: int, share: int | None, more: bool) -> None:
        """Results of one task, or of all that are in hand."""
        self.commit(list(self.hands) if more else [self.pick(which)], number, share)

    def commit(self, chosen: list[Held], number: int, share: int | None) -> None:
        finished = [each for held in chosen for each in self.finish(held, "accepted", share)]
        wanted = [held for held in chosen if self.is_held(held) and self.as_it_was(held)]
        taken = work.commit(self.handle(number)._scope, [summary(held.task) for held in chosen], finished)
        assert taken == len(wanted), "a result is taken if it is fenced, and as often as that"
        for held in chosen:
            if held in wanted:
                assert held.task.job.job_pk not in self.done
                self.done.add(held.task.job.job_pk)
            self.drop(held)
        self.see_what_was_joined()

    def as_it_was(self, held: Held) -> bool:
        """Whether what a task was made of has not been revised since."""
        scope = self.handle(0)._scope
        with scope.store.read() as db:
            try:
                return work.inputs_now(scope, db, held.task.job) == held.task.inputs
            except (optchat.IntegrityError, KeyError, AssertionError):
                return False

    @precondition(lambda self: self.hands)
    @rule(which=numbers, number=handles, final=st.booleans(), share=st.sampled_from((None, 50)))
    def fails(self, which: int, number: int, final: bool, share: int | None) -> None:
        held = self.pick(which)
        scope = self.handle(number)._scope
        was_held, finished = self.is_held(held), self.finish(held, "failed", share)
        last = final or held.task.job.attempts + 1 >= self.policy.job_attempts
        give_up = work.fail(scope, held.task, "RuntimeError", None if final else 5.0, finished)
        assert give_up == (was_held and last and self.policy.on_failed == "stand_in")
        if give_up and work.commit(scope, [work.stand_in(scope, held.task)]):
            self.done.add(held.task.job.job_pk)
        self.drop(held)

    @precondition(lambda self: any(held.call is not None for held in self.hands))
    @rule(which=numbers, number=handles, kind=st.sampled_from(("transport", "rate", "authentication")))
    def meets_trouble(self, which: int, number: int, kind: Any) -> None:
        held = self.pick(which, [held for held in self.hands if held.call is not None])
        attempts = self.rows("SELECT attempts FROM job WHERE job_pk = :job", job=held.task.job.job_pk)
        was_held, finished = self.is_held(held), self.finish(held, "trouble", None)
        scope = self.handle(number)._scope
        if calls.met_trouble(scope, held.task.job, Trouble(kind, "ConnectionError", None), finished, 0.5):
            if was_held:
                assert self.paused_by_trouble()
                now = self.rows("SELECT attempts FROM job WHERE job_pk = :job", job=held.task.job.job_pk)
                assert now == attempts, "trouble uses up no attempt"
        else:
            assert held.task.job.troubled_at is not None, "the first time it is nobody's own"
            given_up = work.fail(scope, held.task, "ConnectionError", 5.0)
            if given_up and work.commit(scope, [work.stand_in(scope, held.task)]):
                self.done.add(held.task.job.job_pk)
        self.drop(held)

    @precondition(lambda self: self.hands)
    @rule(which=numbers, number=handles, wanted=st.booleans())
    def gives_back(self, which: int, number: int, wanted: bool) -> None:
        """A shift ends. What it was told later, a careless worker hands in all the same."""
        held = self.pick(which)
        job, fence = held.name
        work.give_back(self.handle(number)._scope, {job: fence}, self.finish(held, "cancelled", None), wait_seconds=5)
        self.drop(held, late=wanted)

    @precondition(lambda self: self.leases)
    @rule(worker=workers, number=handles)
    def renews(self, worker: str, number: int) -> None:
        mine = {held.task.job.job_pk: held.task.job.fence for held in self.hands if held.worker == worker}
        work.renew(self.handle(number)._scope, mine)
        for held in self.hands:
            if held.worker == worker and self.is_held(held):
                self.renewed(held)

    @precondition(lambda self: self.leases)
    @rule(worker=workers)
    def dies(self, worker: str) -> None:
        """Its process is killed: its leases name an owner whose byte in the lock file is free."""
        scope = self.handle(0)._scope
        with scope.store.write() as db:
            if self.dead_owner is None:
                db.execute("INSERT INTO owner (slot, token, pid, started_at) VALUES (777, 'dead', 1, 0)")
                self.dead_owner = db.last_insert_rowid()
            for held in self.hands:
                if held.worker == worker and self.is_held(held):
                    job, fence = held.name
                    db.execute(
                        "UPDATE job SET owner_pk = :dead WHERE job_pk = :job", {"dead": self.dead_owner, "job": job}
                    )
                    self.leases[job] = fence, evolve(self.leases[job][1], alive=False)

    @precondition(lambda self: self.leases)
    @rule(worker=workers, number=handles, expires=st.booleans())
    def is_overtaken(self, worker: str, number: int, expires: bool) -> None:
        """Another takes what a worker is at, which goes on and does not know it."""
        if expires:
            self.clock.advance(LEASE_SECONDS + 1)
        else:
            self.dies(worker)
        self.look_after_leases(number)
        self.claim("w2", number, 8)

    @rule(number=handles, what=st.sampled_from(("leases", "retry", "reopen")))
    def somebody_looks_after_it(self, number: int, what: str) -> None:
        if what == "leases":
            self.look_after_leases(number)
        elif what == "retry":
            self.retry(number)
        else:
            self.reopen(number)

    def look_after_leases(self, number: int) -> None:
        scope = self.handle(number)._scope
        over = self.leases_over()
        assert work.end_dead_leases(scope) == len(over)
        for job in over:
            del self.leases[job]  # whoever holds the task does not hear of it

    def leases_over(self) -> list[int]:
        now = self.now
        absurd = now + int(max(2 * LEASE_SECONDS, 1800) * SECOND_US)
        return [
            job
            for job, (_, lease) in self.leases.items()
            if lease.until < now or lease.until > absurd or not lease.alive
        ]

    def retry(self, number: int) -> None:
        self.handle(number).retry_failed()
        assert self.rows("SELECT 1 FROM pause") == []

    @precondition(lambda self: len(self.seen) > 3)
    @rule(number=handles, which=numbers)
    def repairs(self, number: int, which: int) -> None:
        """A node and all that was made of it get new texts, in one transaction, while workers have the old ones."""
        scope = self.handle(number)._scope
        refs = [line.ref for line in self.handle(number).view().lines if line.kind != "verbatim"]
        for held in self.hands:  # what they are at is of more interest
            span = span_of_post_order(held.task.job.subject & KEY_MASK)
            if held.task.job.subject >> KEY_BITS == scope.row.shared_tree and span.count > 1:
                refs = [f"pub:{child}" for child in span.children]
        if not refs:
            return
        try:
            plan = remaking.begin_repair(
                scope, refs[which % len(refs)], rooms(WINDOW_TOKENS, self.policy.compactor_view_bytes)
            )
            while (task := plan.next()) is not None:
                plan.take(task, f"{task.summary.mark}again {self.count}", Recipe("summary", NAME, PROMPT_VERSION))
            assert remaking.commit_repair(scope, plan) >= 1
        except (optchat.BadArgument, InputsChanged):
            return  # what it is made of is still being summarised
        self.count += 1
        self.see_what_was_joined()

    def see_what_was_joined(self) -> None:
        """A revision can make a leased job needless: what it is of is new already, or fits together now."""
        left = {job for (job,) in self.rows("SELECT job_pk FROM job")}
        for held in self.hands:
            if self.is_held(held) and held.task.job.job_pk not in left:
                job = held.task.job
                of = (
                    "turn WHERE turn_pk = :key AND publication_key IS NOT NULL"
                    if job.kind == "publication"
                    else ("node WHERE node_key = :key")
                )
                assert self.rows(f"SELECT 1 FROM {of}", key=job.subject), "a job went, and nothing came of it"
                del self.leases[job.job_pk]

    # ---- what time does ----------------------------------------------------------------------------------------------

    @rule(
        seconds=st.sampled_from((0.5, 4, 31, 61, 1000, 3601)),
        passes=st.sampled_from((True, True, False)),
        back=st.booleans(),
    )
    def time_goes_on_or_is_set(self, seconds: float, passes: bool, back: bool) -> None:
        if passes:
            self.clock.advance(seconds)
        else:
            self.clock.jump(-seconds if back else seconds)

    def reopen(self, number: int) -> None:
        """The handle's open turns end, and failed jobs are armed. What is leased stays, if the other handle is open."""
        memory = self.open_handles.pop(number, None)
        if memory is None:
            return
        memory.close()
        for key, turn in list(self.open_turn.items()):
            if turn._house is memory._house:
                del self.open_turn[key]
        self.handle(number)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def it_holds(self) -> None:
        """Every law, where something was committed since the last look."""
        if not hasattr(self, "folder"):
            return
        version = self.handle(0), self.handle(0)._scope.store.data_version()
        if version != self.looked:
            self.looked = version
            self.leases_are_as_the_model_has_them()
            self.nodes_are_made_once_and_stand()
            self.what_was_not_completed_is_told_at_every_level()
            self.no_job_is_lost()
            self.the_ledger_has_each_call_once()
            self.it_is_consistent_and_another_handle_sees_the_same()

    def leases_are_as_the_model_has_them(self) -> None:
        with self.handle(0)._scope.store.read() as db:
            stored = {lease.job_pk: (lease.fence, lease.until) for lease in queue.leases(db)}
        assert stored == {job: (fence, lease.until) for job, (fence, lease) in self.leases.items()}

    def nodes_are_made_once_and_stand(self) -> None:
        found = {
            (key, revision): text
            for sql in (
                "SELECT node_key, revision, text FROM node",
                "SELECT node_key, revision, text FROM node_history",
            )
            for key, revision, text in self.rows(sql)
        }
        for name, text in self.seen.items():
            assert found[name] == text
        self.seen = found
        numbered = [number for (number,) in self.rows("SELECT publication_key & :mask FROM publication", mask=KEY_MASK)]
        assert sorted(numbered) == list(range(len(numbered)))
        turns = [turn for (turn,) in self.rows("SELECT turn_pk FROM publication")]
        assert len(set(turns)) == len(turns)

    def what_was_not_completed_is_told_at_every_level(self) -> None:
        scope = self.handle(0)._scope
        told = self.rows(
            "SELECT p.publication_key & :mask, t.outcome FROM publication p JOIN turn t USING (turn_pk)", mask=KEY_MASK
        )
        how = [outcome for _, outcome in sorted(told)]
        nodes = self.rows(
            "SELECT node_key & :mask, failed, interrupted, text FROM node WHERE node_key >> :bits = :tree",
            mask=KEY_MASK,
            bits=KEY_BITS,
            tree=scope.row.shared_tree,
        )
        for position, failed, interrupted, text in nodes:
            span = span_of_post_order(position)
            under = how[span.start : span.end]
            assert (failed, interrupted) == (under.count("failed"), under.count("interrupted"))
            if span.count == 1 and under != ["completed"]:
                assert under[0] in text, "it says so in its text, too"
        for line in self.handle(0).view().lines:
            span = Span(*(int(part) for part in line.ref.removeprefix("pub:").split("+")))
            under = how[span.start : span.end]
            assert ("failed" in str(line)) == ("failed" in under) or "failed" in line.text

    def no_job_is_lost(self) -> None:
        """Each place that is complete has its node or its job."""
        scope = self.handle(0)._scope
        nodes = {key for (key,) in self.rows("SELECT node_key FROM node")}
        jobs = {(kind, subject) for kind, subject in self.rows("SELECT kind, subject FROM job")}
        lengths = {scope.row.shared_tree: len(self.rows("SELECT 1 FROM publication"))}
        for tree, segment in self.rows("SELECT tree_pk, segment_pk FROM segment"):
            records = self.rows(
                "SELECT record_key, leaf_bytes FROM record WHERE record_key >> :bits = :segment ORDER BY record_key",
                bits=KEY_BITS,
                segment=segment,
            )
            lengths[tree] = len(records)
            for key, leaf_bytes in records:
                leaf = node_key(tree, Span(key & KEY_MASK, 1))
                assert leaf_bytes is not None or leaf in nodes or (0, leaf) in jobs
        for tree, length in lengths.items():
            for leaf in range(length):
                for span in completed_by(leaf):
                    key = node_key(tree, span)
                    assert key in nodes or (1, key) in jobs, f"{span} of tree {tree}"
                    assert key not in nodes or (1, key) not in jobs
        for tree, pages in self.rows("SELECT tree_pk, pages FROM tree WHERE kind = 'chunk'"):
            for span in {inner for root in exact_cover(0, pages) for inner in under(root)}:
                key = node_key(tree, span)
                assert (key in nodes) != ((2, key) in jobs), f"{span} of {pages} pages"
        for turn, published in self.rows(
            "SELECT turn_pk, publication_key FROM turn WHERE state = 'ended' AND end_seq > start_seq"
        ):
            assert (published is None) == ((3, turn) in jobs)

    def the_ledger_has_each_call_once(self) -> None:
        stored = self.rows("SELECT call_pk, at, outcome, reserved_tokens, input_tokens FROM call")
        assert stored == [
            (
                call.pk,
                call.at,
                call.outcome,
                call.need.tokens,
                None if call.reported is None else call.reported.tokens,
            )
            for call in self.calls.values()
        ]
        assert self.handle(0).status().total.calls == len(self.calls)
        for now in {call.at for call in self.calls.values()} | {self.now}:
            for measure, seconds, limit in CEILINGS:
                window = [
                    call.amount(measure) for call in self.calls.values() if now - seconds * SECOND_US < call.at <= now
                ]
                assert sum(window) <= limit + 1e-9

    def it_is_consistent_and_another_handle_sees_the_same(self) -> None:
        self.step += 1
        report = self.handle(self.step % 2).verify()
        assert report.ok, report.faults
        if self.step % 5 == 0:
            with open_with(
                self.folder / "memory.db",
                scope="one",
                summarizer=None,
                tokenizer=None,
                policy=self.policy,
                background=False,
                mode="ro",
                clock=self.clock,
            ) as reader:
                assert reader.view() == self.handle(0).view() == self.handle(1).view()
                for info in reader.sessions():
                    assert reader.view(info.id) == self.handle(0).view(info.id)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            self.all_work_completes()
        finally:
            for memory in self.open_handles.values():
                memory.close()
            shutil.rmtree(self.folder)

    def all_work_completes(self) -> None:
        """One worker that is well does all that is left, whatever became of the others."""
        memory = self.handle(0)
        for turn in self.open_turn.values():
            turn.end("completed")
        for _ in range(400):
            self.clock.advance(4_000)
            self.retry(0)
            self.look_after_leases(0)
            if not self.claim("w0", 0, 8) and memory.status().ready:
                break
            self.commit(list(self.hands), 0, None)
        status = memory.status()
        assert status.ready, status
        assert status.publications == len(self.rows("SELECT 1 FROM turn"))
        self.no_job_is_lost()
        assert memory.verify().ok


def under(span: Span) -> Iterator[Span]:
    """A node's place and all below it."""
    yield span
    if span.count > 1:
        for child in span.children:
            yield from under(child)


TestWorkersMachine = WorkersMachine.TestCase
# After each step all that is stored is checked: an example takes the time of ten of other laws.
assert settings.default is not None
TestWorkersMachine.settings = settings(max_examples=max(5, settings.default.max_examples // 10))
