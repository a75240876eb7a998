"""The services that tasks need while they run, the same for threads and for coroutines."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import ConfigurationError, short
from django_fairque.engine.model.lease import LeaseKey
from django_fairque.engine.model.outcome import Outcome
from django_fairque.tasks import registry
from django_fairque.tasks.errors import TaskRevoked
from django_fairque.tasks.execution import Services, execute, failed_outcome, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django_fairque.engine.model.lease import Lease
    from django_fairque.tasks.execution import Run

MAX_REVOKED_LEASES = 10_000


class RevokedLeases(set[LeaseKey]):
    """Leases of one shard that were revoked. One thread adds to them, any thread may read."""

    def add_leases(self, leases: Iterable[LeaseKey]) -> None:
        if len(self) > MAX_REVOKED_LEASES:  # of runs that had ended before: nobody asks for them any more
            self.clear()
        self.update(leases)

    def settle(self, outcome: Outcome) -> Outcome:
        """What to report of a run that has ended: of one that was revoked nothing, as its lease is not ours any more."""
        if not self or outcome.lease.key not in self:
            return outcome
        self.discard(outcome.lease.key)
        return Outcome.release(outcome.lease)


def timeout_of(run: Run) -> float:
    """Seconds it may run; without a limit 30 years."""
    return 1e9 if run.timeout is None else run.timeout


def is_revoked(run: Run) -> bool:
    """Whether the run must not start, because its lease was revoked before it could be interrupted."""
    revoked = run.services.revoked
    return bool(revoked) and run.lease.key in revoked


def run_one(run: Run) -> Outcome:
    """Run it in this thread, unless it is not to begin."""
    return Outcome.release(run.lease) if is_revoked(run) else execute(run)


def prepare_runs(leases: Sequence[Lease], services: Services) -> tuple[list[Run], list[Outcome]]:
    """The runs that are to begin, and the outcomes of those that won't."""
    runs: list[Run] = []
    outcomes: list[Outcome] = []
    for lease in leases:
        run = prepare(lease, services)
        if isinstance(run, Outcome):
            outcomes.append(run)
        elif is_revoked(run):
            outcomes.append(Outcome.release(lease))
        else:
            runs.append(run)
    return runs, outcomes


def failed_outcomes(runs: Sequence[Run], error: BaseException, started: float) -> list[Outcome]:
    """What was stopped from outside has failed with ``error``, each of a batch; what is not wanted any more is given back."""
    if isinstance(error, TaskRevoked):
        return [Outcome.release(run.lease) for run in runs]
    took = (monotonic() - started) / len(runs)
    return [failed_outcome(run, error, took) for run in runs]


def batch_limits(name: str) -> tuple[int, float] | None:
    """``(size, seconds to wait)`` of a batch of the tasks of that name, None if each runs by itself."""
    definition = registry.find(name) if name else None
    if definition is None or not definition.options.batch:
        return None
    return definition.options.batch, definition.options.batch_wait


def import_handler(path: str | None) -> Callable[[Any], Any] | None:
    """The handler of bare payloads that the configuration names."""
    if path is None:
        return None
    from django.utils.module_loading import import_string

    try:
        handler = import_string(path)
    except ImportError as error:
        raise ConfigurationError(
            f"handler: expected the dotted path of a callable, got {short(path)}: {error}"
        ) from error
    if not callable(handler):
        raise ConfigurationError(f"handler: expected a callable, {path!r} is a {type(handler).__name__}")
    found: Callable[[Any], Any] = handler
    return found
