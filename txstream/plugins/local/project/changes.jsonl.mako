{"before": null, "after": {"id": 1, "name": "tea", "price": "AAAAAAAAAcI="}, "source": {"connector": "postgresql", "ts_ms": 1769860800100, "lsn": 100}, "op": "r"}
{"before": null, "after": {"id": 2, "name": "milk", "price": "AAAAAAAAAHg="}, "source": {"connector": "postgresql", "ts_ms": 1769860800101, "lsn": 101}, "op": "c"}
{"before": {"id": 1, "name": "tea", "price": "AAAAAAAAAcI="}, "after": {"id": 1, "name": "tea", "price": "AAAAAAAAAds="}, "source": {"connector": "postgresql", "ts_ms": 1769860800102, "lsn": 102}, "op": "u"}
{"before": {"id": 2, "name": "milk", "price": "AAAAAAAAAHg="}, "after": null, "source": {"connector": "postgresql", "ts_ms": 1769860800103, "lsn": 103}, "op": "d"}
