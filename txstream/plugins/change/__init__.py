"""Goes back and on: savepoints of all states of a topology, rewind, and swap with a fork."""
