"""`txstream doctor`: looks at all that a run needs, before one begins.

What it touches: an ephemeral znode and a scratch table, both removed again, and a small Spark job. It reads
everything else.
"""
