"""What happened: every stage as text, its costs, its laws, and what torch.compile makes of it."""

import tpgen._e3nn  # noqa: F401
