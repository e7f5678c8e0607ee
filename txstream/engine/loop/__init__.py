"""What a leader does from batch to batch: `event_loop` carries out what the coordinator decides, and has
planning, processing, failures and waits done by the files that are named for them. Operators' requests
arrive in `operator_requests`; pauses, ends and changes of `slots` take effect in `operator_changes`."""
