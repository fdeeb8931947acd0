"""WHAT is computed: irreps and instructions become a frozen plan. No tensor flows here."""

import tpgen._e3nn  # noqa: F401
