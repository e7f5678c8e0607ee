"""The contenders of `benchmarks/beside_peers.py`."""
