"""The processes of one machine: started in order, watched, restarted, ended."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException

from .child import Child, ChildSpec, last_lines
from .errors import ChildDied, TimedOut
from .plan import Plan
from .restart import GiveUp, RestartPolicy
from .state import ClusterState, ConductorState, NodeState, WorkerState

_READY_SECONDS = 120.0
_PROBE_SECONDS = 1.0
_POLL_SECONDS = 0.1
_SAY_AGAIN_SECONDS = 5.0
_STOP_SECONDS = 15.0  # a store may take 10 to flush
_SHOWN_LINES = 10

Say = Callable[[str], None]


@dataclass(slots=True)
class _Slot:
    spec: ChildSpec
    child: Child | None = None
    started_at: float = 0.0
    start_again_at: float | None = None
    policy: RestartPolicy = field(default_factory=RestartPolicy)


class Cluster:
    """Used from one thread, the one that lives longest: children get SIGTERM when it ends."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self.plan = plan
        self._say = say
        self._slots = {spec.name: _Slot(spec) for spec in plan.specs()}

    def start(self) -> None:
        """Start all and wait until each takes work. Raises ChildDied, TimedOut."""
        for stage in self.plan.stages():
            self._start_all(stage)

    def stop(self) -> None:
        """End all, the Conductor first; whoever has not ended in 15 s is killed."""
        for stage in reversed(self.plan.stages()):
            self._stop_all(stage)

    def restart_stores(self) -> None:
        """End the store daemons as an operator would, and start them again: their DRAM is empty
        then. Raises ChildDied, TimedOut."""
        stores = [node.spec for node in self.plan.nodes]
        self._stop_all(stores)
        self._start_all(stores)

    def change_workers(self, plan: Plan) -> None:
        """End the workers and run those of `plan`, which has the same nodes and Conductor. Raises
        ChildDied, TimedOut."""
        assert (plan.nodes, plan.conductor) == (self.plan.nodes, self.plan.conductor)
        leaving = [worker.spec for worker in self.plan.workers]
        self._stop_all(leaving)
        for spec in leaving:
            del self._slots[spec.name]
        self.plan = plan
        arriving = [worker.spec for worker in plan.workers]
        self._slots |= {spec.name: _Slot(spec) for spec in arriving}
        self._start_all(arriving)

    def check(self) -> None:
        """Raises ChildDied if any has ended."""
        for slot in self._slots.values():
            if slot.child is not None and slot.child.exit_status() is not None:
                raise ChildDied(_obituary(slot.child))

    def revive(self) -> bool:
        """Start again who died, after a delay; whether a process changed. Raises ChildDied for one
        that keeps dying."""
        changed = False
        now = time.monotonic()
        for slot in self._slots.values():
            if slot.start_again_at is not None:
                if now >= slot.start_again_at:
                    self._start(slot)
                    changed = True
            elif slot.child is not None and slot.child.exit_status() is not None:
                self._bury(slot, now)
        return changed

    def state(self) -> ClusterState:
        plan = self.plan
        pids = {
            name: slot.child.pid for name, slot in self._slots.items() if slot.child is not None
        }
        return ClusterState(
            ConductorState(plan.conductor.url, pids[plan.conductor.spec.name]),
            str(plan.token_file),
            tuple(
                NodeState(n.id, str(n.socket), n.listen, n.admin, str(n.data_dir), pids[n.id])
                for n in plan.nodes
            ),
            tuple(WorkerState(w.id, w.role, w.node, w.url, pids[w.id]) for w in plan.workers),
        )

    def _start_all(self, specs: Sequence[ChildSpec]) -> None:
        """At once; returns when each takes work."""
        slots = [self._slots[spec.name] for spec in specs]
        for slot in slots:
            self._start(slot)
        for slot in slots:
            self._await_ready(slot)

    def _stop_all(self, specs: Sequence[ChildSpec]) -> None:
        deadline = time.monotonic() + _STOP_SECONDS
        children = [child for spec in specs if (child := self._slots[spec.name].child) is not None]
        for child in children:
            child.terminate()
        for child in children:
            if not child.wait(deadline - time.monotonic()):
                self._say(f"{child.spec.name} did not end in {_STOP_SECONDS:g} s: killing it")
                child.kill()
                child.wait(_STOP_SECONDS)

    def _start(self, slot: _Slot) -> None:
        slot.child = Child(slot.spec)
        slot.started_at = time.monotonic()
        slot.start_again_at = None

    def _bury(self, slot: _Slot, now: float) -> None:
        assert slot.child is not None
        verdict = slot.policy.on_death(now - slot.started_at)
        if isinstance(verdict, GiveUp):
            raise ChildDied(f"{_obituary(slot.child)}\ngiving up after {verdict.deaths} deaths")
        self._say(
            f"{slot.spec.name} {slot.child.describe_end()}; starting it again in "
            f"{verdict.delay_s:g} s (log: {slot.spec.log_file})"
        )
        slot.start_again_at = now + verdict.delay_s

    def _await_ready(self, slot: _Slot) -> None:
        deadline = slot.started_at + _READY_SECONDS
        say_at = slot.started_at
        while not _answers(slot.spec.ready_url):
            self.check()
            now = time.monotonic()
            if now > deadline:
                raise TimedOut(
                    f"waited {_READY_SECONDS:g} s for {slot.spec.waits_for}; the end of its log:\n"
                    + "\n".join(last_lines(slot.spec.log_file, _SHOWN_LINES))
                )
            if now >= say_at:
                self._say(f"waiting for {slot.spec.waits_for} ({now - slot.started_at:.0f} s)")
                say_at = now + _SAY_AGAIN_SECONDS
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def running(plan: Plan, say: Say) -> Iterator[Cluster]:
    """A started cluster; ended on the way out, whatever happens."""
    cluster = Cluster(plan, say)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _obituary(child: Child) -> str:
    lines = "\n".join(f"  {line}" for line in last_lines(child.spec.log_file, _SHOWN_LINES))
    return f"{child.spec.name} {child.describe_end()}; the end of {child.spec.log_file}:\n{lines}"


def _answers(url: str) -> bool:
    """Whether `url` answers 200 now. Asked directly: a proxy knows nothing of this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_PROBE_SECONDS) as response:
            return bool(response.status == 200)
    except (OSError, HTTPException):  # URLError is an OSError
        return False
