"""The product's simulation, on topologies of our own: their histories are exact, and it notices every guard
that is taken away."""
