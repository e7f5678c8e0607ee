"""Tracked tuples: spouts in the driver, micro-batches, turns and report."""
