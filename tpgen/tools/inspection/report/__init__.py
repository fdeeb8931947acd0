"""Compile reports: what `torch.compile` makes of a product or a network, part by part."""
