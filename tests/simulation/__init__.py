"""A seeded model of drivers, ZooKeeper, databases and a log, which runs the real protocol without threads."""
