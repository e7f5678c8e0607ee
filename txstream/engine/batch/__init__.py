"""One attempt of one batch: laid out on the driver (`execution_plan`, `sizing`, `layout`), run by `worker`
in each Spark task, put together again in `task_answers`."""
