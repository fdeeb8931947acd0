"""WHAT is computed: irreps and instructions become a frozen plan. No tensor flows here."""
