"""A run of a topology. `run` is the entry point; `start` brings the topology up, `loop` decides what comes
next, `batch` processes a batch, with the `states` of its bolts, and `commit` commits it. `spark` runs the
jobs of both, `local_runner` does so without Spark, and `tracked` is the tier without batches. No two of these
rooms import each other, not even by way of a third."""
