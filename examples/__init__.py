"""Small topologies, each runnable and tested."""
