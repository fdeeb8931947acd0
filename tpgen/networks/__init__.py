"""Programs of whole networks: written down as graphs, put together, shared, inverted."""

import tpgen._e3nn  # noqa: F401
