"""Costs: FLOPs, bytes and times of each path, against what the machine can do."""
