"""Spark tasks that stay, so that a small batch costs no start of a Spark job."""
