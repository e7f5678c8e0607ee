"""What users test topologies and bolts with. They import it as `txstream.testing`."""
