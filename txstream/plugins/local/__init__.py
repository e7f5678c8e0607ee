"""txstream on one machine: SQLite, embedded servers, batches without Spark, demo, new projects, topics."""
