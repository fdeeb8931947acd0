"""What a kernel computes: the straight-line program of one row and one channel."""
