"""The first import of e3nn: every package of ours that names it imports this module before its own."""

import torch.serialization

with torch.serialization.safe_globals([slice]):  # e3nn 0.4 keeps one in the file of constants that it loads
    import e3nn.o3  # noqa: F401
