"""What a topology depends on is killed and frozen at random while known records are counted: `make chaos`."""
