"""What users implement or call: spouts, bolts, tuples, topologies, groupings, reducers, states."""
