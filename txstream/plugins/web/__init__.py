"""The page, `txstream ui`: topologies, their attempts and their state in a browser. Needs the extra `ui`.

It reads ledgers and ZooKeeper as commands do, and needs no driver.
"""
