"""The protocol over any store that has transactions of get and put; and one in memory."""
