"""Everything from a driver's election to its first batch. `Driver.start`, in `driver`, fixes the order;
`takeover` does the last steps, from the identity to the coordinator."""
