"""The revisions of the framework's own tables, one in each file."""
