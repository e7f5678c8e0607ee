"""What looks behind the results and mends them: fsck, recover, replay, why, wait, delete. It also names the
record at which a batch fails."""
