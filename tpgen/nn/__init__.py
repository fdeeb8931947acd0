"""The modules that users construct."""

import tpgen._e3nn  # noqa: F401
