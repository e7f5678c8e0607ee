"""The states that bolts read and write themselves, as a worker process has them: which tables (`bindings`),
open databases (`worker_databases`), one state of one task (`task_map_state`)."""
