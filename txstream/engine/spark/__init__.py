"""Spark. `engine`, `session` and `java_process` start, watch and end it. `spark_runner` runs jobs on it from
the driver; `executor` and `daemon` are for the processes that run its tasks."""
