"""Kills and freezes at random what a topology depends on while known records are counted: `make chaos`."""
