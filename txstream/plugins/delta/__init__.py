"""Results leave for a Delta table: executors write the files, SQL decides, the leader appends. Users import
`DeltaTableBolt` and `version_of` from `txstream`."""
