"""One topology under the three semantics, over the same records and the same faults, side by side.

Each run has the same driver as any other run, over real services. Faults are injected where it meets its
source and its runner, and at the named points of a batch.
"""
