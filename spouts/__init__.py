"""The sources that ship with txstream."""
