"""A run of a topology. `run` is the entry point; `start` brings the topology up, `loop` decides what comes
next, `batch` processes a batch and `commit` commits it. `spark` runs the jobs of both. `tracked` is the tier
without batches."""
