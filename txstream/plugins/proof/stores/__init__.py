"""State in any store whose transactions have get and put, and a store of that kind in memory."""
