"""One attempt of one batch. The driver lays it out (`execution_plan`, `sizing`, `layout`), `worker` runs it
in each Spark task, `task_answers` puts the results together."""
