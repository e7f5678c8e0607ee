"""txstream on one machine: embedded servers, batches without Spark, demo, new projects, topics."""
