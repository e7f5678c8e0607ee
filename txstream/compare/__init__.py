"""One topology under the three semantics, over the same records and the same faults, side by side.

The driver of each run is the one of every run, over real services; faults come in where it meets its source
and its runner, and at the named points of a batch.
"""
