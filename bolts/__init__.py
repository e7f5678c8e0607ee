"""The bolts that ship with txstream."""
