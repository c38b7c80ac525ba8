"""Faults of the program, planted to see that they are found: texts of the real code in the place of others."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """where: `module:function` or `module:class.method`.  old, new: text of its source."""

    where: str
    old: str
    new: str


_SUPERVISION = "tuner.farm.supervision:Supervision."
_LOG = "tuner.log.writer:RunLog."
_SAVE = "tuner.runs.checkpoint:Checkpoint.save"
_COUNTS = "{w.folder.name: w.count._replace(parts=w.count.parts + bool(n)) for w, n in ((self._tasks, tasks), (self._rows, rows))}"

BUGS: dict[str, tuple[Edit, ...]] = {
    "part-not-fsynced": (Edit("tuner.log.dataset:_publish", "staged.fsync()", "pass"),),
    "folder-not-fsynced": (Edit("tuner.log.dataset:_publish", "    folder.fsync()", "    pass"),),
    "killed-part-not-made-durable": (Edit("tuner.log.dataset:DatasetWriter.__init__", "begin = folder.fsync", "begin = str"),),
    "claimed-folder-not-made-durable": (
        Edit("tuner.runs.folder:RunFolder.__init__", "path.parent.fsync()", "pass"),
        Edit("tuner.runs.folder:_ensure_folder", "folder.parent.fsync()", "pass"),
    ),
    "mirror-of-a-folder-taken-away": (Edit("tuner.runs.mirror:Mirror._adopt", "(0, *numbers)", "numbers"),),
    "acknowledged-before-rename": (
        Edit(
            "tuner.log.dataset:DatasetWriter.publish_table",
            "_publish(self.folder, self._next, table, self.tmp)",
            "self.late, late = (self._next, table), getattr(self, 'late', None); late and _publish(self.folder, *late, self.tmp)",
        ),
        Edit(f"{_LOG}close", "self.flush()", "self.flush(); [w.publish_table(w.schema.empty_table()) for w in (self._tasks, self._rows)]"),
    ),
    "counts-ahead-of-parts": (
        Edit(f"{_LOG}_publish", "        if tasks:\n", f"        write_counts(self._run_folder, {_COUNTS})\n        if tasks:\n"),
    ),
    "checkpoint-ahead-of-log": (Edit(_SAVE, "self.log.flush()", "pass"),),
    "findings-not-cut": (Edit(_SAVE, "put([data], self._size)", "put([data], len(findings_file.read_bytes()) if self._size else 0)"),),
    "checkpoint-in-place": (Edit(_SAVE, "write_atomically(self.folder / FILE, ", "(self.folder / FILE).put("),),
    "logged-twice-after-resume": (
        Edit(f"{_LOG}append", "new = tasks if not len(earlier) else tasks[is_new := ~np.isin(seqs, earlier)]", "new = tasks"),
    ),
    "publisher-loses-rows": (
        Edit(f"{_LOG}_publish", "del self._new_rows[: len(rows)]", "rows = list(self._new_rows); self._new_rows.clear()"),
    ),
    "double-commit": (Edit("tuner.farm.commit_log:Ledger.commit", "name not in self.tasks for", "True for"),),
    "numbers-by-place": (
        Edit(
            "tuner.farm.commit_log:Ledger._logged",
            "self.log.numbers.assign([names[k] for k in indices.tolist()])",
            "count(self.numbers) + np.arange(len(indices))",
        ),
    ),
    "ahead-left-out": (Edit("tuner.farm.search_run:SearchRun._resume", "if not lost_rows:", "if False:"),),
    "ahead-counted-twice": (Edit("tuner.farm.commit_log:Ledger._logged", "name not in self.ahead.tasks for", "True for"),),
    "lost-wake-up": (Edit(f"{_SUPERVISION}_lose_actor", "queue[1:] if not external", "queue[:0] if not external"),),
    "late-result-of-the-dead": (
        Edit(
            f"{_SUPERVISION}handle",
            "self._slots_by_actor.get(event.actor)",
            "self._slots_by_actor.get(event.actor) or self._slots.all_slots[event.actor % len(self._slots.all_slots)]",
        ),
        Edit(f"{_SUPERVISION}_finish_queued", "queued.number == event.job", "True"),
    ),
    "blamed-at-once": (Edit(f"{_SUPERVISION}_suspect", "if head.isolated_losses >= DEATHS_ALONE:", "if head.isolated_losses:"),),
    "outage-blamed": (Edit(f"{_SUPERVISION}handle", "event.outside", "False"),),
    "told-too-little": (
        Edit(
            "tuner.farm.actor_pool:ActorPool.message",
            "self.broadcast.update(job, self._received.get(send.actor, (0, 0)))",
            "self.broadcast.update(job, self._received.get(send.actor, self._received.get(send.actor - self.workers, (0, 0))))",
        ),
    ),
    "stored-again-after-resume": (Edit("tuner.farm.store_client:StoreClient._measured", "key not in self._known_tasks for", "True for"),),
    "double-demand": (
        Edit(
            f"{_SUPERVISION}_replace", "heappush(self._absent, slot.index)", "heappush(self._absent, slot.index); self._start(slot, now_s)"
        ),
    ),
    "lost-release": (
        Edit("tuner.farm.slots:Slots._due_s", "slot.built and slot.extra", "slot.built and slot.extra and slot.pace_s is None"),
    ),
    "result-after-drain": (
        Edit(f"{_SUPERVISION}_drain", "while slot.queue and", "queue = list(slot.queue)\n    while slot.queue and"),
        Edit(f"{_SUPERVISION}_drain", "self._slots.sort(slot)", "slot.queue.extend(queue[len(slot.queue) :]); self._slots.sort(slot)"),
        Edit(f"{_SUPERVISION}_finish_queued", "job.holders.remove(slot)", "slot in job.holders and job.holders.remove(slot)"),
        Edit(f"{_SUPERVISION}_finish_queued", "if job.finished:", "if job.finished and slot.leaves_s is None:"),
    ),
    "measured-ahead-became-row": (
        Edit(
            "tuner.farm.coordinator:Coordinator._receive",
            "self.schedule.received(key, result)",
            "self.schedule.received(key, result); self.ledger.keep(result)",
        ),
    ),
    "snapshot-of-a-dead-node": (
        Edit(
            "tuner.farm.actor_pool:ActorPool.message",
            "_, job, until_s",
            "node = send.name.partition(':')[0]\n    _, job, until_s",
        ),
        Edit(
            "tuner.farm.actor_pool:ActorPool.message",
            "self._received.get(send.actor, (0, 0)))\n",
            "self._received.get(send.actor, self._received.get(node, (0, 0))))\n",
        ),
        Edit(
            "tuner.farm.actor_pool:ActorPool.message", "self._received[send.actor] =", "self._received[node] = self._received[send.actor] ="
        ),
    ),
    "ctrl-c-between-part-and-note": (Edit(f"{_LOG}_publish_aside", "self._threads.apart(self._publish)", "self._publish()"),),
}


def _owner(where: str) -> tuple[Any, dict[str, Any], str]:
    """What holds the function, the globals of its module, its name."""
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    scope = owner.__dict__
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, scope, name


@contextmanager
def _edited(where: str, edits: Sequence[Edit]) -> Iterator[None]:
    owner, scope, name = _owner(where)
    real = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(real))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise ValueError(f"{where}: {edit.old!r} is there {source.count(edit.old)} times: the code has changed, plant the bug anew")
        source = source.replace(edit.old, edit.new)
    found: dict[str, Any] = {}
    exec(compile(f"from __future__ import annotations\n{source}", "<planted>", "exec"), scope, found)
    setattr(owner, name, found[name])
    try:
        yield
    finally:
        setattr(owner, name, real)


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """While this lasts, the program has it."""
    edits = BUGS[name] if name is not None else ()
    with ExitStack() as stack:
        for where in dict.fromkeys(edit.where for edit in edits):
            stack.enter_context(_edited(where, [edit for edit in edits if edit.where == where]))
        yield
