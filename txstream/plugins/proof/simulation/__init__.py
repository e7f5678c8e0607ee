"""A seeded model of drivers, ZooKeeper, databases and a source. It runs the product's own driver, loop,
recovery, commit protocol and progress store, without threads. `docs/testing.md` says how to use it.

`simulate` runs a topology through many schedules (`runs`). A schedule is one history of a `world`, decided by
`chances`.
"""
