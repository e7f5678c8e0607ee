"""A run of a topology. `run` is its door; `start` takes the topology up, `loop` decides what comes next,
`batch` processes it, `commit` has it written; `spark` runs their jobs; `tracked` is the tier without
batches."""
