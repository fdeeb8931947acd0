"""Operators that torch calls, their derivatives, and the tensors they run on."""
