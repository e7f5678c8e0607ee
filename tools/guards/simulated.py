"""Guards that the simulation alone proves, and mistakes of which no single line is the guard."""

from __future__ import annotations

from guards import sources
from guards.guard import Guard
from guards.hunt import (
    GIVEN_UP,
    LATE,
    LATE_ENDS,
    OPAQUE,
    TRANSACTIONAL,
    ZOMBIES,
    ChangeHunt,
    Hunt,
    refused_by_the_next_commit,
)
from guards.patch import Patch
from txstream.core.errors import CorruptStateError, ProgressMismatchError
from txstream.plugins.proof.simulation.world import WrongResultError

_LEDGER_ROW = "            here.write_batch(self._row(commit, COMMITTING, 0))\n"
_UNDO = "            if written_before:\n                self._restore(here, attempt)\n"
_BEGIN_AGAIN = "        with self.store.begin(self.life, str(attempt)) as here:\n"
_HOLD = "            here.hold_fence(attempt.attempt)\n"
_BEGIN = (
    '        with self.store.begin(self.life, f"the beginning of {attempt}") as here:\n'
    + sources.RAISE
    + "            # Asked before the row is replaced: without a row, no attempt has written this txid.\n"
    "            written_before = self._was_here(found, commit)\n"
)
_BEGIN_ASKS_FIRST = Patch(
    sources.PROTOCOL,
    _BEGIN,
    "        written_before = self.batch(attempt.txid) is not None\n"
    + _BEGIN[: _BEGIN.index("            # Asked")],
)
_COMMIT_ASKS_FIRST = Patch(
    sources.PROTOCOL,
    _BEGIN_AGAIN
    + "            if self.life.is_fenced:\n"
    + sources.RAISE_IN_COMMIT
    + "                if self._was_here("
    "found, commit):\n",
    "        written_before = self.batch(attempt.txid) is not None\n"
    + _BEGIN_AGAIN
    + "            if self.life.is_fenced:\n"
    + sources.RAISE_IN_COMMIT
    + "                if written_before:\n",
)
_LEDGERS_READ_FIRST = Patch(
    sources.TAKEOVER,
    "    epoch = take_over(store, states, locked=locked)\n",
    "    read = [\n"
    "        type('Read', (), {'display_url': one.display_url, 'last_batch': lambda _, row=row: row})()\n"
    "        for one in states\n"
    "        for row in [one.last_batch()]\n"
    "    ]\n"
    "    epoch = take_over(store, states, locked=locked)\n",
)
_LEDGERS_OF_BEFORE = Patch(
    sources.TAKEOVER, "topology.semantics, store, settled, codec)", "topology.semantics, store, read, codec)"
)

SIMULATED = (
    Guard(
        "5.3",
        "a database without deltas takes part in the commit",
        sources.PROTOCOL,
        "        attempt, writes = commit.attempt, self._own(commit)\n" + _BEGIN_AGAIN + "            if self"
        ".life.is_fenced:\n                found = here.raise",
        "        attempt, writes = commit.attempt, self._own(commit)\n"
        "        if not any(deltas.num_rows for _, deltas in writes):\n"
        "            return\n"
        + _BEGIN_AGAIN
        + "            if self.life.is_fenced:\n                found = here.raise",
        mutant="NothingForNoDeltas",
        does="A database that has no deltas in a batch is not restored and gets no ledger row.",
        hunts=refused_by_the_next_commit(Hunt(ProgressMismatchError, OPAQUE, 2)),
    ),
    Guard(
        "5.2.3",
        "ledgers are read after the fences are raised",
        _LEDGERS_READ_FIRST.file,
        _LEDGERS_READ_FIRST.old,
        _LEDGERS_READ_FIRST.new,
        mutant="LedgersReadBeforeFencesAreRaised",
        does="A start does step 4 before step 2: it reads the ledgers before it raises the fences.",
        hunts=(
            Hunt(ProgressMismatchError, OPAQUE, 1, ZOMBIES),
            Hunt(ProgressMismatchError, OPAQUE, 2, ZOMBIES),
        ),
        instead=(_LEDGERS_READ_FIRST, _LEDGERS_OF_BEFORE),
    ),
    Guard(
        "5.3",
        "with a failed attempt every later one is dropped",
        sources.COORDINATOR,
        "dropped = [txid for txid in self.active if txid >= attempt.txid]",
        "dropped = [attempt.txid]",
        mutant="FailDropsOnlyTheFailedAttempt",
        does="Only the failed attempt is dropped; later batches go on as if its replay could not shrink.",
        hunts=(Hunt(WrongResultError, OPAQUE),),
        instead=(
            Patch(
                sources.COORDINATOR,
                "[txid for txid in self.active if txid >= attempt.txid]",
                "[attempt.txid]",
            ),
            Patch(sources.COORDINATOR, "if txid >= attempt.txid and txid not in self._fixed:", "if False:"),
            Patch(
                sources.COORDINATOR,
                "self._replays.update(dropped)\n        return commands + self._sync()",
                "self._replays.update(dropped)\n        return commands + self._plan(attempt.txid)",
            ),
            Patch(
                sources.COORDINATOR,
                "        self._metas.get_or_create(plan.txid, lambda _: metas)\n",
                "        self._metas.get_or_create(plan.txid, lambda _: metas)\n"
                "        self._metas.replace(plan.txid, metas)\n",
            ),
            # The check of the invariants would find it first.
            Patch(
                sources.COORDINATOR,
                "        if found:\n            raise",
                "        if False:\n            raise",
            ),
        ),
    ),
    Guard(
        "5.3",
        "begin: the fence is raised first",
        sources.PROTOCOL,
        _BEGIN + _LEDGER_ROW + _UNDO,
        '        with self.store.begin(self.life, f"the beginning of {attempt}") as here:\n'
        + sources.LOOK
        + "            written_before = self._was_here(found, commit)\n"
        + _LEDGER_ROW
        + _BEGIN_AGAIN
        + _UNDO
        + _BEGIN_AGAIN
        + sources.RAISE,
        mutant="BeginRaisesTheFenceLast",
        does="`begin_commit` writes the ledger and undoes the batch while older attempts can still write.",
        hunts=(Hunt(WrongResultError, OPAQUE, 1, ZOMBIES), Hunt(WrongResultError, OPAQUE, 2, ZOMBIES)),
    ),
    Guard(
        "5.3",
        "begin: it is one transaction",
        sources.PROTOCOL,
        _LEDGER_ROW + _UNDO,
        _BEGIN_AGAIN + _LEDGER_ROW + _BEGIN_AGAIN + _UNDO,
        mutant="BeginLooksAtTheFenceOnce",
        does="`begin_commit` runs in three transactions, and only the first checks the fence.",
        hunts=(Hunt(WrongResultError, OPAQUE, 1, ZOMBIES),),
    ),
    Guard(
        "5.3",
        "begin: no attempt is undone before the ledger says `committing`",
        sources.PROTOCOL,
        _LEDGER_ROW + _UNDO,
        _BEGIN_AGAIN + _HOLD + _UNDO + _BEGIN_AGAIN + _HOLD + _LEDGER_ROW,
        mutant="BeginRestoresBeforeItsLedgerRow",
        does="`begin_commit` undoes an earlier attempt while the ledger still says `committed`.",
        hunts=(Hunt(WrongResultError, OPAQUE, 1, LATE_ENDS),),
    ),
    Guard(
        "5.3",
        "the ledger is asked after the fence is raised",
        sources.PROTOCOL,
        _BEGIN_ASKS_FIRST.old,
        _BEGIN_ASKS_FIRST.new,
        mutant="TheLedgerIsAskedBeforeTheFenceIsRaised",
        does="The ledger is asked too early: a commit that arrives before the fence is raised is not undone.",
        hunts=(Hunt(WrongResultError, OPAQUE, 1, LATE),),
        instead=(_BEGIN_ASKS_FIRST, _COMMIT_ASKS_FIRST),
    ),
    Guard(
        "5.4",
        "a task holds the fence while it writes",
        sources.PROTOCOL,
        sources.HOLD + "            return",
        sources.HOLD
        + "        with self.store.begin(self.life, str(attempt), alone=not self.life.is_fenced) as here:\n"
        "            return",
        mutant="TasksHoldNoLock",
        does="A task checks the fence without holding it, so the fence may be raised before the task writes.",
        hunts=(Hunt(WrongResultError, OPAQUE, 1, GIVEN_UP),),
    ),
    Guard(
        "5.3",
        "no task starts if the answer to the beginning was lost",
        sources.TAKE_LOST_BEGINS_FOR_DONE.file,
        sources.TAKE_LOST_BEGINS_FOR_DONE.old,
        sources.TAKE_LOST_BEGINS_FOR_DONE.new,
        mutant="LostBeginsAreTakenForDone",
        does="Tasks start although the answer to the beginning was lost, so the fence may be below them.",
        hunts=(Hunt(CorruptStateError, OPAQUE),),
    ),
    Guard(
        "5.3",
        "a batch's rows are there once it is committed",
        "txstream/plugins/proof/simulation/stores.py",
        "            held.apply()\n",
        "            spaces = [space for space in held._changed if space.startswith('rows/')]\n"
        "            kept = {space: held._changed.pop(space) for space in spaces}\n"
        "            held.apply()\n"
        "            vars(self)['kept_back'] = kept\n",
        mutant="TablesLagBehind",
        does="The rows of a batch are written when the next transaction begins, or before the last look.",
        hunts=(Hunt(WrongResultError, OPAQUE), Hunt(WrongResultError, TRANSACTIONAL, 2)),
        also=(
            Patch(
                "txstream/plugins/proof/simulation/stores.py",
                "        alone, shared = transaction.alone, transaction.shared\n",
                "        for space, rows in vars(self).pop('kept_back', {}).items():\n"
                "            self.spaces.setdefault(space, {}).update(rows)\n"
                "        alone, shared = transaction.alone, transaction.shared\n",
            ),
            Patch(
                "txstream/plugins/proof/simulation/world.py",
                "        if self.expected is not None:\n            found, expected, whose",
                "        for server in self.servers:\n"
                "            for space, rows in vars(server).pop('kept_back', {}).items():\n"
                "                server.spaces.setdefault(space, {}).update(rows)\n"
                "        if self.expected is not None:\n            found, expected, whose",
            ),
        ),
    ),
    Guard(
        "hole 11",
        "where the log ended is stored before anything is read behind it",
        "txstream/plugins/proof/simulation/source.py",
        "        world = self._driver.world\n        self._reach()\n",
        "        places = vars(self).setdefault('places', {})\n"
        "        for partition, end in self._log.ends.items() if not last else ():\n"
        "            places.setdefault(partition, MemoryRange(end, end))\n"
        "        last = {**places, **last}\n"
        "        world = self._driver.world\n        self._reach()\n",
        mutant="PlacesLiveInTheProcess",
        does="Where the log ended when the first run began is remembered until a batch has records of it.",
        hunts=(
            Hunt(WrongResultError, OPAQUE, 1, at_end=True),
            Hunt(WrongResultError, OPAQUE, 2, at_end=True),
            Hunt(WrongResultError, TRANSACTIONAL, 1, at_end=True),
        ),
    ),
    Guard(
        "5.2",
        "the identity in ZooKeeper says which states count",
        sources.PROGRESS,
        "    def replace_identity(self, identity: Identity) -> None:\n",
        "    def replace_identity(self, identity: Identity) -> None:\n        return\n",
        mutant="TheIdentityIsNotStored",
        does="A state counts, but nothing tells the former code that it may not go on without it.",
        hunts=(ChangeHunt(WrongResultError, OPAQUE),),
    ),
    Guard(
        "5.2",
        "the ledger of a database that joins begins at the txid before its first",
        sources.STORE,
        "            _begin_ledger(here, life.topology, last)\n",
        "            pass\n",
        promises=("a-ledger-may-begin-late",),
        mutant="JoinsWithoutItsFirstTxid",
        does="A database that joins has no ledger, so the next leader cannot tell it from one that lost all.",
        hunts=(ChangeHunt(ProgressMismatchError, TRANSACTIONAL),),
    ),
    Guard(
        "5.2",
        "a column is added once",
        sources.STORE,
        "        if owner is None or not added:\n            continue\n",
        "        if owner is not None and not added and len(spec.state.value_names) == 2:\n"
        "            more = spec.state.defaults[spec.state.value_names[1]]\n"
        "            for key, ((n, total), prev, txid) in list(here.scan(layout.rows_space(name))):\n"
        "                here.put(layout.rows_space(name), key, ((n, total + more), prev, txid))\n"
        "        if owner is None or not added:\n            continue\n",
        mutant="DefaultsAreAddedTwice",
        does="A start that finds the column present adds its default again.",
        hunts=(ChangeHunt(WrongResultError, OPAQUE), ChangeHunt(WrongResultError, TRANSACTIONAL)),
    ),
    Guard(
        "5.2",
        "the value before a batch gets the default too",
        sources.MERGING,
        "None if prev is None else with_defaults(prev)",
        "None if prev is None else (*prev, 0)",
        mutant="TheValueBeforeHasNoDefault",
        does="A value that is undone after a column was added comes back without the default.",
        hunts=(ChangeHunt(WrongResultError, OPAQUE),),
    ),
    Guard(
        "5.2",
        "no transactional table grows while a batch is committed in part",
        sources.STORE,
        "if unfinished is not None and spec.semantics is Semantics.TRANSACTIONAL:",
        "if False:",
        mutant="GrowsWhileCommittedInPart",
        does="Rows that have a transactional txid already are not written again and lack the column forever.",
        hunts=(ChangeHunt(WrongResultError, TRANSACTIONAL),),
    ),
    Guard(
        "5.1",
        "a bolt reads the state as it was before its batch",
        sources.STORE,
        "rules.before(stored, before)",
        "rules.before(stored, Txid(before + 1))",
        promises=("opaque-rules",),
        mutant="BoltsReadTheirOwnBatch",
        does="What an earlier attempt of a batch has written is read as if it had been there before it.",
        hunts=(ChangeHunt(WrongResultError, OPAQUE),),
    ),
    Guard(
        "5.1",
        "a cache is used only after the attempt that left it was committed",
        "txstream/engine/states/state_cache.py",
        "if committed is None or committed != self._left_by:",
        "if False:",
        mutant="CachesOutliveAnAttempt",
        does="A task uses what an attempt left that was never committed.",
        hunts=(ChangeHunt(WrongResultError, OPAQUE),),
    ),
)
