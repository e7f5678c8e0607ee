"""What proves: the simulation, the conformance suites of sources and stores, and stores of get and put."""
