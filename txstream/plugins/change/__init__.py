"""Goes back: savepoints of all states of a topology."""
