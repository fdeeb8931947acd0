"""Compile reports on `torch.compile`."""
