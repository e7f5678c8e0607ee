"""The checks of `build` on states: one writer for each table and key, and semantics that fit the spout's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txstream.api.bolts import BatchBolt, DataFrameBolt, MergeableBolt, StateCommitter
from txstream.api.groupings import GroupingKind
from txstream.api.schema import format_type
from txstream.api.state import SqlState, SqlTable
from txstream.api.topology import Component, Phase, StateUse
from txstream.core.errors import TopologyError
from txstream.core.semantics import Semantics, legal_state_semantics
from txstream.core.wording import a


def check_states(
    semantics: Semantics, components: Sequence[Component]
) -> tuple[tuple[tuple[StateCommitter, Semantics], ...], tuple[StateUse, ...]]:
    """Return the states of a topology with their semantics: first those of committers of deltas, then those
    that bolts declare themselves. Raises TopologyError for a table that two components write and for inputs
    that would lose updates."""
    states: list[tuple[StateCommitter, Semantics]] = []
    uses: list[StateUse] = []
    tables: dict[tuple[str | None, str], str] = {}
    goals: dict[str, str] = {}

    def claim(component: Component, state: SqlState, as_what: str = "") -> None:
        writer = f"{component.id!r}{as_what}"
        place = (state.url, state.table.lower())
        if place in tables:
            raise TopologyError(
                f"components {tables[place]} and {writer} both write table {state.table!r}; "
                f"give each a table of its own"
            )
        tables[place] = writer
        if state.changes is None:
            return
        if semantics is Semantics.NON_TRANSACTIONAL:
            raise TopologyError(
                f"component {writer}: table {state.table!r} has changes_to, but under a {semantics} spout "
                f"its rows do not remember which batch changed them; choose another spout, or leave it out"
            )
        claim(component, state.changes, f"{as_what} (changes of {state.table!r})")
        keeps_prev = (state.semantics or semantics) is Semantics.OPAQUE
        if state.keeps_versions and not (keeps_prev and state.on_conflict in (None, "replace")):
            raise TopologyError(
                f"component {writer}: table {state.table!r} keeps versions, but its rows do not know what "
                f"they were before a batch; take semantics='opaque', and of a SqlTable on_conflict='replace'"
            )
        if (other := goals.setdefault(str(state.changes_to) or writer, writer)) != writer:
            raise TopologyError(
                f"components {other} and {writer} both have changes_to={str(state.changes_to)!r}, where "
                f"nobody could tell whose rows are whose; give each a place of its own"
            )

    by_id = {component.id: component for component in components}
    for component in components:
        for name, state in _declared_states(component).items():
            _check_map_state(component, name, state, by_id)
            claim(component, state, f" (state {name!r})")
            uses.append(StateUse(component.id, name, state, _map_state_semantics(state, semantics)))
            _check_cache(component, uses[-1])
        bolt = component.instance
        if isinstance(bolt, StateCommitter):
            if bolt.state.cache_rows:
                raise TopologyError(
                    f"component {component.id!r}: table {bolt.state.table!r} has cache_rows, but "
                    f"{a(type(bolt).__name__)} reads nothing that could be kept; leave it out"
                )
            if not isinstance(bolt.state, SqlTable):
                _check_state_inputs(component, bolt.state)
            claim(component, bolt.state)
            states.append((bolt, _state_semantics(bolt.state, semantics)))
    return tuple(states), tuple(uses)


def check_keep(
    components: Sequence[Component],
    uses: Sequence[StateUse],
    *,
    sets_aside: bool,
) -> None:
    """Raise TopologyError for a table with `keep` of which late records could not be set aside. `sets_aside`:
    the topology asks for dead letters."""
    for use in uses:
        if use.state.sets_aside is not None:
            raise TopologyError(
                f"component {use.component!r} (state {use.name!r}): table {use.state.table!r} has "
                f"{use.state.sets_aside}, but a bolt that writes rows itself runs in the commit phase, where "
                f"no late record can be set aside; leave that out, or fill the table by SqlStateBolt or "
                f"SqlAppendBolt"
            )
    tables: set[str] = set()
    below_frames: set[str] = set()
    for component in components:
        above = {grouping.component for grouping in component.inputs}
        if isinstance(component.instance, DataFrameBolt) or above & below_frames:
            below_frames.add(component.id)
        state = component.instance.state if isinstance(component.instance, StateCommitter) else None
        if state is None or state.sets_aside is None:
            continue
        why = ""
        if component.below_committer:
            why = "it is filled in the commit phase, where no late record can be set aside; fill it before"
        elif component.id in below_frames:
            why = (
                "it is filled from a DataFrameBolt, behind which each late record costs many Spark jobs; "
                "fill it from a bolt in Python"
            )
        elif not sets_aside:
            why = (
                "records that are older become dead letters, which the topology does not ask for; add "
                "dead_letters=DeadLetters() to its builder"
            )
        elif state.table in tables:
            why = "another database has a table with keep of the same name; give each a name of its own"
        if why:
            raise TopologyError(
                f"component {component.id!r}: table {state.table!r} has {state.sets_aside}, but {why}"
            )
        tables.add(state.table)


def _check_state_inputs(component: Component, state: SqlState) -> None:
    if component.tasks == 1:
        return
    for grouping in component.inputs:
        if grouping.kind is GroupingKind.GLOBAL:
            continue
        if grouping.kind is not GroupingKind.FIELDS or not set(grouping.fields) <= set(state.key_names):
            raise TopologyError(
                f"component {component.id!r}: group its input by the key of table {state.table!r} "
                f"({', '.join(state.key_names)}) or a part of it, not by {grouping}; two tasks with the same "
                f"key would lose updates"
            )
    if len({(grouping.kind, grouping.fields) for grouping in component.inputs}) > 1:
        raise TopologyError(
            f"component {component.id!r}: group all its inputs alike, by the same fields in the same order; "
            f"it has {' and '.join(map(str, component.inputs))}, which can send one key to two tasks"
        )


def _declared_states(component: Component) -> Mapping[str, SqlState]:
    """Return the states that a bolt declares itself. Raises TopologyError for an invalid declaration."""
    declared = getattr(component.instance, "states", None)
    if not isinstance(component.instance, BatchBolt):
        mine = declared.values() if isinstance(declared, Mapping) else ()
        if any(isinstance(state, SqlState) for state in mine):
            raise TopologyError(
                f"component {component.id!r} declares states, but {type(component.instance).__name__} is no "
                f"BatchBolt; only a committer, or a BatchBolt below one, has states"
            )
        return {}
    if not isinstance(declared, Mapping) or not all(
        isinstance(name, str) and isinstance(state, SqlState) for name, state in declared.items()
    ):
        raise TopologyError(
            f"component {component.id!r}: its attribute states is {declared!r:.200}; it must be a mapping of "
            f"names to SqlState"
        )
    return declared


def _check_map_state(
    component: Component, name: str, state: SqlState, components: Mapping[str, Component]
) -> None:
    """Check a state that the component reads and writes itself: the component must run in the commit phase,
    and one task must get all tuples of a key."""
    if isinstance(component.instance, (StateCommitter, MergeableBolt)):
        raise TopologyError(
            f"component {component.id!r} declares state {name!r}, but {a(type(component.instance).__name__)} "
            f"runs wherever its tuples are, also several times for one key; use a BatchBolt and Committer"
        )
    if isinstance(state, SqlTable):
        raise TopologyError(
            f"component {component.id!r} declares state {name!r}, but {state.table!r} is a SqlTable, whose "
            f"rows only SqlAppendBolt writes; declare a SqlState"
        )
    if component.phase is not Phase.COMMIT:
        raise TopologyError(
            f"component {component.id!r} declares state {name!r}, but it runs before its batch commits; add "
            f"it with set_committer_bolt, or below a committer"
        )
    _check_state_inputs(component, state)
    if component.tasks == 1:
        return
    for grouping in component.inputs:
        schema = components[grouping.component].streams[grouping.stream]
        for field_name in grouping.fields:
            given = schema.field(field_name).type
            column = state.key_schema.field(field_name).type
            if not given.equals(column):
                raise TopologyError(
                    f"component {component.id!r}: it is grouped by field {field_name!r} "
                    f"({format_type(given)}), but that key column of table {state.table!r} is "
                    f"{format_type(column)}; equal keys could be in two tasks: declare one type"
                )


def _check_cache(component: Component, use: StateUse) -> None:
    if use.state.cache_rows and use.semantics is not Semantics.OPAQUE:
        raise TopologyError(
            f"component {component.id!r}: table {use.state.table!r} is {use.semantics} and cannot have "
            f"cache_rows; only an opaque row keeps what it held before a batch that is written again. "
            f"Declare it semantics='opaque', or without a cache"
        )


def _state_semantics(state: SqlState, spout: Semantics) -> Semantics:
    legal = legal_state_semantics(spout)
    chosen = state.semantics or legal[0]
    if chosen not in legal:
        raise TopologyError(
            f"table {state.table!r}: the spout is {spout} and cannot fill {chosen} state, "
            f"because {_why_illegal(spout, chosen)}; "
            f"use semantics {' or '.join(repr(str(s)) for s in legal)}"
        )
    return chosen


def _map_state_semantics(state: SqlState, spout: Semantics) -> Semantics:
    """Return the semantics of a `MapState`: opaque even below a transactional spout, unless declared
    otherwise. What a bolt reads must be from before the batch in a replay too, and only an opaque row keeps
    that."""
    if state.semantics is None and Semantics.OPAQUE in legal_state_semantics(spout):
        return Semantics.OPAQUE
    return _state_semantics(state, spout)


def _why_illegal(spout: Semantics, state: Semantics) -> str:
    if state is Semantics.NON_TRANSACTIONAL:
        return "a replay would be counted twice"
    if spout is Semantics.NON_TRANSACTIONAL:
        return "its batches have no fixed order to compare with"
    return "its replays may hold other tuples, which a row with only a txid cannot undo"
