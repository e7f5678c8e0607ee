"""Windows of time that close: counts by hour, day or week, and when they are final."""
