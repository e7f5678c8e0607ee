"""The promises of the conformance suites by what they are about: a test checks those of one kind together."""

from __future__ import annotations

from txstream.plugins.proof.spout_suite import (
    every_row_once,
    outages,
    planning,
    reading,
    source,
    spout_checks,
)
from txstream.plugins.proof.state_suite import (
    column_types,
    commits,
    fence,
    joining,
    ledger,
    optional,
    state_checks,
    values,
)

_STATES = (joining, fence, commits, ledger, values, column_types, optional)
_SPOUTS = (every_row_once, planning, reading, outages, source)
STATE_KINDS = {kind.__name__.rpartition(".")[2]: [check.name for check in kind.CHECKS] for kind in _STATES}
SPOUT_KINDS = {kind.__name__.rpartition(".")[2]: [check.name for check in kind.CHECKS] for kind in _SPOUTS}
# A kind that is left out would be tested nowhere.
assert sum(map(len, STATE_KINDS.values())) == len(state_checks())
assert sum(map(len, SPOUT_KINDS.values())) == len(spout_checks())
