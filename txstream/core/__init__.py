"""Pure rules and values of exactly-once; nothing here imports anything of txstream but its neighbours."""
