"""A new project folder, for `txstream init`: its files are the templates beside this module."""
