"""What looks behind the results and mends them: fsck, recover, replay, why, delete."""
