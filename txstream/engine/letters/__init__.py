"""What becomes of failures: which are replayed, at which record; dead letters, from search to topic."""
