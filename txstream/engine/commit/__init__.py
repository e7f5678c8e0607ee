"""The commit of one batch on the driver: which databases have a topology's states (`state_targets`), and what
a batch writes there (`committer`). `loop/commit_phase` calls it. The order of the writes, `begin_commit` to
`end_commit`, is in `state/commit_protocol.py`."""
