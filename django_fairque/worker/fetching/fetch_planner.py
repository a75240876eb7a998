"""Plans a worker's calls to one shard: which leases to fetch, and which outcomes to report. This module does no I/O.

One call reports outcomes and fetches leases. `FetchPlanner.next_call` decides when to make a call. Three aims compete:
few calls, no idle slot, and no task that waits in the buffer. A call is due when

- the buffer has no more leases than its low mark (0 unless tasks are short), and there are outcomes to report or tasks
  to fetch, or
- an outcome has waited `OUTCOME_FLUSH_SECONDS` while the buffer is still full, because a long task delays the rest.

So the last outcome of a burst of tasks is reported at once. With long tasks, every outcome is reported at once. Short
tasks are reported and fetched in batches while the buffer is still three quarters full, so that the server and the
slots work at the same time. Slots take from `buffer` and append to `outcomes` from any thread; both are single
operations of the interpreter. Everything else belongs to one thread at a time.

`SlotBudget` is shared by all planners of a worker and divides its slots between them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.engine.sharding.shard_scheduler import NO_WINDOW, FairShardOrder, ShardScheduler, Window
from django_fairque.worker.common.buffer import LeaseBuffer, Work, is_urgent
from django_fairque.worker.common.status_board import Fence
from django_fairque.worker.fetching.pace import MAX_OUTCOMES_PER_CALL, SECOND_CALL_OUTCOMES, Pace
from django_fairque.worker.fetching.reserved_slots import ReservedSlots, is_lower

if TYPE_CHECKING:
    from django_fairque.engine.model.lanes import Lane, LaneLimits
    from django_fairque.engine.model.lease import Lease
    from django_fairque.worker.common.options import WorkerOptions


@dataclass(frozen=True)
class ShardTurn:
    """The position of a shard among the shards of its queue. All shards of the queue share one order."""

    scheduler: ShardScheduler
    index: int


OUTCOME_FLUSH_SECONDS = 0.01
"""Maximum seconds for which an outcome waits for further outcomes while the slots have enough work."""
MAX_BUFFERED_SECONDS = 1.0
"""Seconds after which a lease that is still in the buffer is given back, because another worker may be free."""
MAX_CONCURRENT_CALLS = 2
"""Maximum number of calls in progress at once."""
FETCH_AHEAD_LEASES = 2
"""Number of leases that an idle worker requests before there is work: one too many, to see whether more is ready."""
MIN_DUE_CHECK_SECONDS = 0.005
"""Minimum seconds between two checks for due tasks. The server may have more due tasks than one call starts."""
MAX_DUE_CHECK_SECONDS = 0.1
"""Maximum seconds between two checks for due tasks, after several checks in a row that found no task. If many tasks
become due one after the other and many workers are idle, nearly all checks would find no task."""
MIN_WAIT_SECONDS = 0.1
"""Minimum seconds of a wait for work, even if a task is due earlier. The server may end a wait late by up to this time."""
FENCE_POLL_SECONDS = 0.02
"""Seconds between two checks of a raised fence."""
FIRST_SELECTIVE_PAUSE_SECONDS = 0.005
MAX_SELECTIVE_PAUSE_SECONDS = 0.25
"""Maximum seconds between two checks of a worker that serves only some users, while all waiting tasks are of others."""

UNANSWERED_CALL_SECONDS = 0.25
"""Seconds after which the other planners stop waiting for a planner whose call was not answered."""


class CallReason(Enum):
    """The reason for a call to the server. If several reasons apply, the first one counts."""

    WOKEN = auto()
    """A wait for work ended because a task is ready."""
    TURN_CHECK = auto()
    """Users of other shards are next, but this shard may have a new user whose turn is earlier."""
    REPORT = auto()
    """Some outcomes must not wait for further outcomes."""
    FETCH = auto()
    """Tasks are or may be ready, and the worker has a free slot and fewer leases than it can use."""


@dataclass(eq=False)
class FetchCall:
    """One call to make: it reports ``outcomes`` and requests ``fetch`` tasks. ``woken`` shows whether a wait for work
    has ended, and ``made_at`` is the time when the call was planned (`time.monotonic()`)."""

    outcomes: list[Outcome] = field(default_factory=list)
    fetch: int = 0
    woken: bool = False
    made_at: float = 0.0
    made_at_event: int = 0
    """Value of `SlotBudget.events` when the call was made."""
    is_fetch_ahead: bool = False
    """Whether the call is sent after a wait for work on its connection (`FetchPlanner.plan_fetch_ahead`)."""
    window: Window = NO_WINDOW
    """Position of the call's shard among the shards of its queue."""
    lane_limits: LaneLimits | None = None
    """Maximum number of tasks to fetch from the lower lanes because of reserved slots; None without reserved slots."""
    fence: int = 0
    """Number of the shard's fence when the call was planned. If the number has changed, no lease of the reply starts."""


class FetchPlanner:
    """The state of one shard of a queue in one worker: when to fetch, how many tasks to fetch, and which leases the
    worker holds.

    Times such as ``now`` are from `time.monotonic()`. ``index`` is the number of this planner. ``budget`` divides the
    worker's slots. ``batch_limits`` returns ``(size, wait)`` for a task's name if tasks of this name run in batches,
    else None. ``turn`` is the position of this planner's shard in its queue. ``divert`` returns whether a lease was
    passed on to another process, which runs its task. ``fence`` is raised by the supervisor while it gives back leases
    of this shard.

    In a process that runs only one task, the planner fetches nothing; `add_lease` adds the task."""

    share = 0
    """Number of slots that the worker last assigned to this queue. Always 0 in a worker with one planner."""
    wait_lane: Lane = "bulk"
    """The lowest lane of the last planned wait for work: tasks of this lane and of higher lanes end the wait."""
    _fetched_lane: Lane = "bulk"
    """The lowest lane for which the last fetch had not reached its limit, so that it would have fetched more tasks."""
    _was_woken = False
    """Whether a wait for work has ended with work, and no tasks were fetched since."""

    def __init__(
        self,
        index: int,
        budget: SlotBudget,
        *,
        batch_limits: Callable[[str], tuple[int, float] | None] = lambda _: None,
        turn: ShardTurn | None = None,
        divert: Callable[[FetchPlanner, Lease], bool] | None = None,
        fence: Fence | None = None,
    ) -> None:
        self.index = index
        self._fence = fence or Fence()
        self.fence = self._fence.number
        """The fence's number when the leases in the buffer were received. A slot reads this number before it takes a
        lease, and compares it with the fence after it has recorded the start of the task."""
        self._buffer = LeaseBuffer(batch_limits)
        self.buffer: deque[Work] = self._buffer.works
        self.outcomes: list[Outcome] = []
        self.held = 0
        self.separate: set[int] = set()
        """Tokens of unfinished leases that separate processes have. Each such lease occupies a slot of this worker."""
        self.tokens: set[int] = set()
        """Tokens of all leases that this planner holds: in the buffer, of running tasks, and with unreported outcomes."""
        self.exhausted = False
        """Whether the last fetch got fewer leases than requested. Until something changes, another would get none."""
        self.is_stopping = False
        self.is_draining = False
        """Whether the planner fetches nothing and keeps no lease that has not started."""
        self.is_out_of_sync = False
        """Whether the server may have leases that this worker does not know; such leases are given back before a fetch."""
        self.settled = 0
        """Number of reported outcomes that came from slots."""
        self.has_failed = False
        """Whether this planner's last call failed. If it did, no slot is kept free for the planner."""
        self.turn = turn or ShardTurn(ShardScheduler([FairShardOrder(1)]), 0)
        options = budget.options
        # A worker with one slot that only empties its queues (`run_tasks` in tests) does not fetch ahead, so that each
        # task starts in its user's turn.
        self.pace = Pace(0 if options.burst and options.concurrency == 1 else options.concurrency)
        self.pending_calls: list[FetchCall] = []
        """Calls that were sent and are not answered."""
        self._budget = budget
        self._options = budget.options
        self._divert = divert
        self._busy_since = 0.0
        self._outcome_since: float | None = None
        self._wait_results: list[bool] = []
        self._companions: set[int] = set()
        """Tokens of all leases of batches except the first lease of each batch, until their outcomes are reported. A
        batch occupies one slot, which its first lease stands for."""
        self._waits: set[Lane] = set()
        """The lanes of the waits for work that are in progress: for each wait, the lowest lane whose tasks end it."""
        self._wait_until = 0.0
        self.fetch_ahead: FetchCall | None = None
        """The call that was sent directly after the wait for work on the same connection (`plan_fetch_ahead`)."""
        self._next_check_due = math.inf
        self._check_pause = MIN_DUE_CHECK_SECONDS
        self._empty_check_at = -math.inf
        self._pause = 0.0
        self._paused_until = 0.0
        self._empty_fetches = 0
        self._empty_at_event = -1
        self._turn_check_due = 0.0
        budget.planners.append(self)

    # --- used by the slots ---

    def list_waiting(self) -> tuple[Work, ...]:
        """Return the work that no slot has taken yet."""
        return self._buffer.snapshot()

    @property
    def should_notify(self) -> bool:
        """Return whether `next_call` must be called now, after an outcome was added."""
        if len(self.buffer) > self.pace.low_mark and not (self.is_stopping or self.is_draining):
            return self._is_free and self.occupied_slots < self.share
        return self._is_free

    @property
    def wants_tasks(self) -> bool:
        """Return whether this planner would fetch tasks if the worker had free slots."""
        if self._options.one_task:
            return False
        is_exhausted = self.exhausted and not self._has_opened_lane
        return not (is_exhausted or self.is_stopping or self.is_draining or self.has_failed)

    @property
    def looks_after_calls(self) -> bool:
        """Return whether other planners' calls affect this planner: it wants tasks, or could not begin a wait."""
        return self.wants_tasks or (self.exhausted and not self._waits)

    @property
    def _has_opened_lane(self) -> bool:
        """Return whether a slot has become free for a lane whose limit the last fetch reached."""
        reserved = self._budget.reserved
        return reserved is not None and is_lower(reserved.lowest_lane, self._fetched_lane)

    def comes_first(self, now: float) -> bool:
        """Return whether slots are kept free for this planner. No slots are kept free if its server does not answer."""
        if not self.wants_tasks or self.is_out_of_sync or self._is_fenced:
            return False
        return all(now - call.made_at < UNANSWERED_CALL_SECONDS for call in self.pending_calls)

    @property
    def is_empty(self) -> bool:
        """Return whether two fetches in a row got no lease, and no task came or ended in this worker since the first of
        them.

        One fetch is not enough: if it finds only expired tasks, it removes some of them and returns no lease, although
        other tasks may wait."""
        return self._empty_fetches >= 2 and self._empty_at_event == self._budget.events

    @property
    def is_done(self) -> bool:
        """Return whether the planner is stopping, holds no leases, and knows nothing that other workers need."""
        return self.is_stopping and not self.held and not self.pending_calls and True not in self._wait_results

    @property
    def needs_no_reply(self) -> bool:
        """Return whether the planner is stopping and needs no replies, because its calls report no outcomes."""
        return self.is_stopping and not any(call.outcomes for call in self.pending_calls)

    @property
    def must_reconcile(self) -> bool:
        """Return whether leases that the server has recorded, and that this planner does not hold, must be given back
        now. The held leases are certain only while no call is in progress."""
        return self.is_out_of_sync and not self.pending_calls and self.fetch_ahead is None

    @property
    def occupied_slots(self) -> int:
        """Return the number of slots that the leases occupy or will occupy, without leases that wait for their batch."""
        leases = self.held - len(self.outcomes) - self._buffer.held_back + len(self.separate)
        if not self._companions:
            return leases
        done = sum(outcome.lease.token in self._companions for outcome in list(self.outcomes))
        return leases - len(self._companions) + done

    def retry_exhausted(self) -> None:
        """Fetch again from empty shards, because a task that ended here may have released tasks on other shards."""
        self._budget.events += 1

    def set_draining(self, *, is_draining: bool) -> None:
        """Stop fetching if ``is_draining``, else fetch again. Can be called from any thread; call `next_call` afterwards."""
        self.is_draining = is_draining
        self.exhausted = self.exhausted and is_draining  # after the end of draining, many new tasks may be waiting

    # --- the next call ---

    def next_call(self, now: float) -> FetchCall | None:
        """Return the call that is due, or None. The call is in progress until `call_succeeded` or `call_failed`."""
        self._release_unstarted(now)
        if self.outcomes and self._outcome_since is None:
            self._outcome_since = now
        if not self._is_free:
            return None
        wait_result = self._take_wait_result(now)
        reason = self._reason_to_call(now, wait_result)
        call = None if reason is None else self._build_call(reason, now)
        if call is not None:
            self.pending_calls.append(call)
        return call

    def _release_unstarted(self, now: float) -> None:
        """Give back the leases that no slot may take, or that no slot has taken for too long."""
        self._follow_fence()
        self._add_batches(now)
        if self.is_stopping or self.is_draining:
            self._give_back()
            self._release(self._buffer.give_back_batches())
        elif self._buffer.has_waited(MAX_BUFFERED_SECONDS, now):
            self._give_back()

    def _take_wait_result(self, now: float) -> bool | None:
        """Return the result of a wait for work that has ended: whether work is ready. None if no wait has ended."""
        wait_result = self._wait_results.pop() if self._wait_results else None
        self._was_woken = self._was_woken or bool(wait_result)
        if wait_result or ((wait_result is not None or now >= self._next_check_due) and not self._fetch_size(now)):
            # A task is ready or may be ready, but another shard may come first, or no slot is free. From now on the
            # other planners leave this planner its share of the slots.
            self.exhausted = False
        return wait_result

    def _reason_to_call(self, now: float, wait_result: bool | None) -> CallReason | None:
        if wait_result:
            return CallReason.WOKEN
        if self._is_turn_check_due(now):
            return CallReason.TURN_CHECK
        if self.outcomes and (
            len(self.outcomes) >= MAX_OUTCOMES_PER_CALL
            or self.should_notify
            or now - (self._outcome_since or now) >= OUTCOME_FLUSH_SECONDS
        ):
            return CallReason.REPORT
        has_changed = (
            not self.exhausted
            or wait_result is not None
            or now >= self._next_check_due
            or self._repeats_empty_fetch
            or self._has_opened_lane
        )
        if has_changed and not self.is_stopping and not self._has_enough(now):
            return CallReason.FETCH
        return None

    def _build_call(self, reason: CallReason, now: float) -> FetchCall | None:
        """Collect the outcomes to report and the number of leases to request. Return None if there is nothing to report
        or request, unless the call has another reason than `CallReason.FETCH`."""
        # Several outcomes of a batch count as one task for the pace.
        most = MAX_OUTCOMES_PER_CALL if self._companions else self.pace.call_size
        outcomes = self._collect(now, most)
        room = 0 if self.is_stopping or self._has_enough(now) else self._fetch_size(now)
        if len(outcomes) == most and self.outcomes:
            room = min(room, most)  # the next call reports the remaining outcomes and fetches as many leases
        if not (outcomes or room) and reason is CallReason.FETCH:
            return None
        rivals = self._budget.rivals(self, now)
        reserved = self._budget.reserved
        return FetchCall(
            outcomes,
            room,
            woken=reason is CallReason.WOKEN,
            made_at=now,
            made_at_event=self._budget.events,
            window=self.turn.scheduler.window(self.turn.index, [other.turn.index for other in rivals]),
            lane_limits=None if reserved is None or not room else reserved.request(room),
            fence=self.fence,
        )

    @property
    def _is_free(self) -> bool:
        """Return whether a call may be made now. While one call is in progress, a second call is made only if many
        outcomes wait: the server begins it directly after the first one. A few outcomes can wait for the next call."""
        return not self.pending_calls or (
            len(self.pending_calls) < MAX_CONCURRENT_CALLS and len(self.outcomes) >= SECOND_CALL_OUTCOMES
        )

    @property
    def _repeats_empty_fetch(self) -> bool:
        return self._options.burst and self._budget.is_idle and not self.is_empty

    def _is_turn_check_due(self, now: float) -> bool:
        """Return whether to ask the server for the next user of this shard, although users of other shards come first.
        Since the last answer, this shard may have got a new user whose turn is earlier."""
        return now >= self._turn_check_due and self._waits_for_turn(now)

    def _waits_for_turn(self, now: float) -> bool:
        if self.is_out_of_sync or self._is_fenced:
            return False
        return self.wants_tasks and not self._budget.has_turn(self, now)

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds after which `next_call` may return a call even if nothing else happens before."""
        if self.pending_calls:
            return 1.0  # the thread of the call in progress notifies when the reply comes
        moments = [now + (FENCE_POLL_SECONDS if self._is_fenced else 1.0)]
        if self.outcomes:
            moments.append((self._outcome_since or now) + OUTCOME_FLUSH_SECONDS)
        elif self.buffer:
            moments.append(now + 0.02)
        moments.extend(batch.due for batch in self._buffer.open_batches.values())
        if self._paused_until > now:
            moments.append(self._paused_until)
        if self._waits_for_turn(now):
            moments.append(self._turn_check_due)
        if self.wants_tasks and self._budget.is_shared:
            # a slot may be kept for another planner whose server does not answer
            moments.append(now + UNANSWERED_CALL_SECONDS)
        if self.exhausted and self._next_check_due < moments[0] and not self.is_stopping and self._can_use_slots(now):
            moments.append(self._next_check_due)
        return max(0.0, min(moments) - now)

    def plan_wait(self, now: float) -> float | None:
        """Return the seconds for which to wait for work now, or None for no wait. Pass the result to `wait_ended`.

        A wait ends when work is due, because the fetch that was sent after it on the same connection must then begin
        (`plan_fetch_ahead`). Only tasks of `wait_lane` and of higher lanes end the wait: tasks of lower lanes can't be
        fetched now, and would end each wait at once. Waits for other lanes continue."""
        lane = "bulk" if self._budget.reserved is None else self._budget.reserved.lowest_lane
        if lane in self._waits or self.is_stopping or not self.exhausted or self._wait_results:
            return None
        if now < self._paused_until or self._has_opened_lane or not self._can_use_slots(now):
            return None
        self._waits.add(lane)
        self.wait_lane = lane
        self._wait_until = min(now + self._options.poll_interval, max(now + MIN_WAIT_SECONDS, self._next_check_due))
        return self._wait_until - now

    def plan_fetch_ahead(self, now: float) -> FetchCall | None:
        """Return the fetch to send on the connection of the wait in progress, directly after it, so that its leases
        arrive as soon as there is work; None for no fetch.

        Pass the result to `call_succeeded` or `call_failed`; or set `fetch_ahead` to None if the call could not be
        sent."""
        if not self._waits or self.fetch_ahead is not None or not self._budget.may_fetch_ahead:
            return None
        if (
            self.is_stopping
            or self._wait_results
            or self.pending_calls
            # without this, the regular check and this call would both fetch
            or self._next_check_due < self._wait_until - MIN_WAIT_SECONDS
        ):
            return None
        room = self._fetch_size(now)
        if room:
            self.fetch_ahead = FetchCall(
                fetch=min(FETCH_AHEAD_LEASES, room),
                made_at_event=self._budget.events,
                is_fetch_ahead=True,
                fence=self.fence,
            )
        return self.fetch_ahead

    def wait_ended(self, *, woken: bool, lane: Lane = "bulk") -> None:
        """Record that the wait for ``lane`` has ended; ``woken`` shows whether work is ready. Any thread may call this."""
        self._wait_results.append(woken)
        self._waits.discard(lane)

    @property
    def is_call_due(self) -> bool:
        """Return whether `next_call` must be called before `seconds_until_due` have passed."""
        return self._is_free and (bool(self._wait_results) or (bool(self.outcomes) and self.should_notify))

    # --- replies ---

    def call_succeeded(self, call: FetchCall, reply: Settled, now: float) -> list[Lease]:
        """Record the ``reply`` to a ``call``. Return the leases that wait for a slot from now on; an empty list if the
        planner must not begin any."""
        leases = reply.leases
        self.has_failed = False
        self.settled += len(call.outcomes)
        self.turn.scheduler.record_reply(self.turn.index, reply)
        # All planners of a worker together make at most a hundred such checks per second.
        self._turn_check_due = now + max(TURN_CHECK_SECONDS, len(self._budget.planners) / 100)
        self._remove_pending(call)
        has_closed_lane = self._record_lanes(call, leases)
        if leases and not call.is_fetch_ahead:
            self.pace.record_round_trip(now - call.made_at)
        if call.is_fetch_ahead and call.woken and not leases:
            # another worker has fetched the task first, or the server does not know this worker yet
            self._wait_results.append(True)
        if not call.fetch:
            return leases
        has_more = reply.has_more and not has_closed_lane
        self.exhausted = len(leases) < call.fetch and not has_more and call.window.steals
        selection = self._options.users, self._options.steal
        woken, self._was_woken = call.woken or self._was_woken, False
        # all ready tasks may belong to users that this worker does not serve
        if woken and not leases and "*" not in selection:
            self._pause = min(
                MAX_SELECTIVE_PAUSE_SECONDS,
                self._options.poll_interval,
                max(FIRST_SELECTIVE_PAUSE_SECONDS, 2 * self._pause),
            )
            self._paused_until = now + self._pause
        else:
            self._pause = 0.0
        self._set_next_check(leases, reply, now)
        if leases:
            self._budget.record_leases(self)
            if self.is_stopping or self.is_draining or call.fence != self._fence.number:
                self._hold(leases)
                self._release([Outcome.release(lease) for lease in leases])
                return []
            self._distribute(leases, now)
        elif self.exhausted and not has_closed_lane:
            self._empty_fetches = self._empty_fetches + 1 if self._empty_at_event == call.made_at_event else 1
            self._empty_at_event = call.made_at_event
        return leases

    def call_failed(self, call: FetchCall, *, is_known: bool) -> None:
        """Record that a ``call`` failed; its outcomes are reported first in the next call. ``is_known``: it is certain
        that the server did not execute the call."""
        self._remove_pending(call)
        self._record_lanes(call, [])
        self.has_failed = True
        self.turn.scheduler.seen(self.turn.index, None)
        if call.fetch:
            self.exhausted = False
            self.is_out_of_sync = self.is_out_of_sync or not is_known
        self.held += len(call.outcomes)
        self.tokens.update(outcome.lease.token for outcome in call.outcomes)
        self._budget.finished -= sum(outcome.kind != "release" for outcome in call.outcomes)
        self.outcomes[:0] = call.outcomes
        if call.woken and not self.is_stopping:
            self._wait_results.append(True)

    def _remove_pending(self, call: FetchCall) -> None:
        if call.is_fetch_ahead:
            self.fetch_ahead = None
            self._waits.discard("bulk")
        else:
            self.pending_calls.remove(call)

    def _record_lanes(self, call: FetchCall, leases: list[Lease]) -> bool:
        """Record the lanes of new leases. Return whether a lane has reached its limit, so that it may have more tasks."""
        reserved, limits = self._budget.reserved, call.lane_limits
        if reserved is None or limits is None:
            return False
        reserved.end_request(limits, self.index, leases)
        lower = [lease.lane for lease in leases if lease.lane != "urgent"]
        has_bulk_slots = lower.count("bulk") < limits.bulk
        self._fetched_lane = "urgent" if len(lower) >= limits.below_urgent else "bulk" if has_bulk_slots else "normal"
        return self._fetched_lane != "bulk"

    # --- fetching ---

    def _fetch_size(self, now: float) -> int:
        if not self._may_fetch:
            return 0
        missing = len(self._buffer.open_batches)  # one turn of a user can fill a batch
        pending = sum(call.fetch for call in self.pending_calls)
        return max(0, self._budget.fetch_size(self, missing, now) - pending)

    def _has_enough(self, now: float) -> bool:
        return len(self.buffer) > self.pace.low_mark and not self._budget.is_below_share(self, now)

    def _can_use_slots(self, now: float) -> bool:
        """Return whether the worker could run another task of this planner now, or when a task of another planner ends."""
        return self._may_fetch and (self._fetch_size(now) > 0 or self._budget.is_below_share(self, now))

    @property
    def _may_fetch(self) -> bool:
        if self._options.one_task:
            return False
        return not (self.is_out_of_sync or self.is_draining or self._is_fenced)

    def add_lease(self, lease: Lease, now: float) -> None:
        """Add a ``lease`` that another process has fetched. The lease of a batch task becomes a batch of one task."""
        self._busy_since = now
        self.held += 1
        self.tokens.add(lease.token)
        self._budget.events += 1
        self.buffer.append(lease)

    def separate_ended(self, tokens: Sequence[int]) -> None:
        """Record that the leases with these ``tokens``, which were passed on, have ended or were given back."""
        if not self.separate.isdisjoint(tokens):
            self.separate.difference_update(tokens)
            self.exhausted = False
            self._budget.events += 1
            if self._budget.reserved is not None:
                self._budget.reserved.end(self.index, tokens)

    @property
    def _is_fenced(self) -> bool:
        return self.fence != self._fence.number

    def _follow_fence(self) -> None:
        """Obey a raised fence: give back the leases that have not begun, and fetch nothing until the fence is lowered."""
        number = self._fence.number
        if number == self.fence:
            return
        if self.buffer:
            self._give_back()
        self._release(self._buffer.give_back_batches())
        if self._fence.is_lowered:
            # The number is updated only when the buffer is empty: a slot that took a lease before has read the old
            # number.
            self.fence = number
            self.exhausted = False

    def _distribute(self, leases: list[Lease], now: float) -> None:
        if self._divert is not None:
            leases = [lease for lease in leases if not self._divert(self, lease)]
        if not self.held:
            self._busy_since = now
        self._hold(leases)
        self._buffer.add(leases, now)
        if self._budget.is_shared:
            self._budget.urgent.extend(self.index for lease in leases if lease.lane == "urgent")
        self._add_batches(now)
        if self._budget.reserved is not None:
            open_batches = self._buffer.open_batches.values()
            joined = {lease.token for batch in open_batches for lease in batch.leases[1:]} | self._companions
            self._budget.reserved.end(self.index, [lease.token for lease in leases if lease.token in joined])

    def _hold(self, leases: list[Lease]) -> None:
        self.held += len(leases)
        self.tokens.update(lease.token for lease in leases)

    def _add_batches(self, now: float) -> None:
        for batch in self._buffer.add_batches(now, all_of_them=self.exhausted and self._options.burst):
            self._companions.update(lease.token for lease in batch[1:])
            if self._budget.is_shared and is_urgent(batch):
                self._budget.urgent.append(self.index)

    def _set_next_check(self, leases: list[Lease], reply: Settled, now: float) -> None:
        """Plan the next check for due tasks. The pause before it grows while checks in quick succession find nothing."""
        if leases or now - self._empty_check_at > 2 * MAX_DUE_CHECK_SECONDS:
            self._check_pause = MIN_DUE_CHECK_SECONDS
        else:
            self._check_pause = min(MAX_DUE_CHECK_SECONDS, 2 * self._check_pause)
        if not leases:
            self._empty_check_at = now
        until_due = math.inf if reply.look_at is None else reply.look_at - reply.now
        self._next_check_due = now + max(self._check_pause, until_due)

    # --- reporting ---

    def _collect(self, now: float, most: int) -> list[Outcome]:
        count = min(len(self.outcomes), most)
        some = self.outcomes[:count]
        del self.outcomes[:count]
        self._outcome_since = now if self.outcomes else None
        self.held -= count
        self.tokens.difference_update(outcome.lease.token for outcome in some)
        if self._budget.reserved is not None:
            self._budget.reserved.end(self.index, [outcome.lease.token for outcome in some])
        self._budget.events += count
        ran = [outcome for outcome in some if outcome.kind != "release"]
        self._budget.finished += len(ran)
        if ran:
            companions = sum(outcome.lease.token in self._companions for outcome in ran) if self._companions else 0
            self.pace.record_ended(ran, now - self._busy_since, companions)
            self._busy_since = now
        if self._companions:
            self._companions.difference_update(outcome.lease.token for outcome in some)
        return some

    def _release(self, outcomes: list[Outcome]) -> None:
        """Report these outcomes without counting them as outcomes of slots."""
        self.outcomes += outcomes
        self.settled -= len(outcomes)

    def _give_back(self) -> None:
        self.pace.reset()
        self._release(self._buffer.give_back())


MAX_FETCH_LEASES = 300
"""Maximum number of leases per call. The server handles no other request while it executes a call."""

TURN_CHECK_SECONDS = 0.1
"""Seconds between two checks of a shard while other shards come first, and the longest wait of a new user there."""


@dataclass(eq=False)
class _QueueUse:
    """Two numbers of slots of a queue: the slots that its planners use, and the slots that they may use."""

    last_leases: int
    """`SlotBudget.last_leases` of the queue."""
    occupied: int = 0
    """Number of slots that run the queue's tasks, plus its leases that wait for a slot."""
    wants_tasks: bool = False
    share: int = 0


class SlotBudget:
    """Divides the slots of a worker between its planners.

    Queues with waiting tasks get equal shares. Slots that a queue does not use are divided between the other queues. A
    queue below its share gets the next free slot. If the slots can't be divided equally, a remaining slot goes to the
    queue whose last leases came longest ago.

    Several threads use the budget without a lock, so two planners may be given the same slot at the same moment. Then
    one lease too many waits in a buffer until a slot is free."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.planners: list[FetchPlanner] = []
        self.finished = 0
        """Number of tasks that were run and whose outcomes are reported, or are being reported."""
        self.events = 0
        """A count that grows whenever tasks are fetched or end."""
        self.last_leases: dict[ShardScheduler, int] = {}
        """The value of `events` when a queue last received leases. The key is the scheduler, because each queue has one."""
        self.reserved = ReservedSlots(options.concurrency, options.reserve) if any(options.reserve.values()) else None
        self.urgent: deque[int] = deque()
        """The numbers of planners with urgent tasks in the buffer, which free slots take first."""

    @property
    def is_shared(self) -> bool:
        """Return whether the worker has several planners."""
        return len(self.planners) > 1

    def record_leases(self, planner: FetchPlanner) -> None:
        """Record that the ``planner`` has received leases."""
        self.events += 1
        self.last_leases[planner.turn.scheduler] = self.events

    def fetch_size(self, planner: FetchPlanner, for_batches: int, now: float) -> int:
        """Return how many leases the ``planner`` may fetch: for free slots, its buffer, and open batches."""
        if not self.is_shared:
            free = self.options.concurrency - planner.occupied_slots
        elif self.has_turn(planner, now):
            free = self._count_free_slots(planner, now)
        else:
            return 0
        return min(max(0, free + planner.pace.prefetch) + for_batches, MAX_FETCH_LEASES, self._remaining)

    def is_below_share(self, planner: FetchPlanner, now: float) -> bool:
        """Return whether the next free slot would be for the ``planner`` if it wanted tasks.

        If a queue has several shards, the slot may be for any of these shards."""
        if not (self.is_shared and self._remaining):
            return False
        planner.share = self._uses(now, also_wants=planner)[planner.turn.scheduler].share
        return planner.occupied_slots < planner.share

    @property
    def _remaining(self) -> int:
        """Return the number of tasks that the worker may fetch until it is replaced."""
        if not self.options.max_tasks:
            return MAX_FETCH_LEASES
        return max(0, self.options.max_tasks - self.finished - sum(planner.held for planner in self.planners))

    def _count_free_slots(self, planner: FetchPlanner, now: float) -> int:
        """Return the number of slots that the ``planner`` may fill. Negative if its queue has leases beyond its share."""
        uses = self._uses(now, also_wants=planner)
        mine = uses[planner.turn.scheduler]
        planner.share = mine.share
        free = self.options.concurrency - sum(use.occupied for use in uses.values())
        # a lease beyond the queue's share could take a slot from another queue
        if max(0, mine.share - mine.occupied) < free:
            return mine.share - mine.occupied - planner.pace.prefetch
        if free < 0:  # leases wait in the buffers, and slots take work from each queue in turn
            free = self.options.concurrency - sum(min(use.occupied, use.share) for use in uses.values())
        return min(mine.share - mine.occupied, free)

    def _uses(self, now: float, also_wants: FetchPlanner) -> dict[ShardScheduler, _QueueUse]:
        """Return the slots that each queue uses, and its share."""
        uses: dict[ShardScheduler, _QueueUse] = {}
        for planner in self.planners:
            queue = planner.turn.scheduler
            use = uses.setdefault(queue, _QueueUse(self.last_leases.get(queue, -1)))
            use.occupied += planner.occupied_slots
            use.wants_tasks = use.wants_tasks or planner is also_wants or planner.comes_first(now)
        left, wanting = self.options.concurrency, list(uses.values())
        # First, each queue that needs at most an equal share gets as many slots as it needs.
        for use in sorted((use for use in uses.values() if not use.wants_tasks), key=lambda use: use.occupied):
            if use.occupied * len(wanting) > left:
                break
            use.share = use.occupied
            left -= use.share
            wanting.remove(use)
        for number, use in enumerate(sorted(wanting, key=lambda use: use.last_leases)):
            use.share = left // len(wanting) + (number < left % len(wanting))
        return uses

    def has_turn(self, planner: FetchPlanner, now: float) -> bool:
        """Return whether the ``planner`` may fetch now: no other shard of its queue that wants tasks comes first."""
        others = [other.turn.index for other in self.rivals(planner, now)]
        return planner.turn.scheduler.has_turn(planner.turn.index, others)

    def rivals(self, planner: FetchPlanner, now: float) -> list[FetchPlanner]:
        """Return the planners of the queue's other shards that want tasks too."""
        if not self.is_shared:
            return []
        among = planner.turn.scheduler
        return [
            other
            for other in self.planners
            if other is not planner and other.turn.scheduler is among and other.comes_first(now)
        ]

    @property
    def may_fetch_ahead(self) -> bool:
        """Return whether a planner may request tasks ahead. Only the single planner of an idle worker may do this.

        With several planners, each planner would fetch tasks, more than there are slots. A running task that keeps the
        interpreter lock would delay tasks fetched ahead, although another worker could begin them."""
        return len(self.planners) == 1 and self.is_idle and not self.options.burst and self.reserved is None

    @property
    def is_idle(self) -> bool:
        """Return whether no planner of the worker holds a lease."""
        return not any(planner.held or planner.separate for planner in self.planners)

    @property
    def is_everything_empty(self) -> bool:
        """Return whether every queue was empty when it was checked after the last task of the worker had ended."""
        return self.is_idle and all(planner.is_empty for planner in self.planners)
