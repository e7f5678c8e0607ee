"""What a leader does from batch to batch. `event_loop` carries out what the coordinator decides; planning,
processing, failures and waits have files that are named after them. Operators' requests arrive in
`operator_requests`; pauses, stops and changes of `slots` take effect in `operator_changes`."""
