"""txstream: exactly-once state in a SQL database from Kafka."""

__version__ = "0.1.0"
