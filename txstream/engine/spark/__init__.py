"""Spark: started, watched and ended by `engine`, `session` and `java_process`; its jobs run by
`spark_runner` on the driver, by `executor` and `daemon` where tasks run."""
