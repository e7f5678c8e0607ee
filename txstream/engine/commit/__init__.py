"""The commit of one batch, from its bolts (`commit_phase`) to the states' databases (`committer`). The order
of the writes, `begin_commit` to `end_commit`, is in `state/commit_protocol.py`."""
