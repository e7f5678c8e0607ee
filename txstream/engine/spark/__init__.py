"""Spark: started, watched and ended by `engine`, `session` and `process`; its jobs run by `runner` on the
driver, by `executor` and `daemon` where tasks run."""
