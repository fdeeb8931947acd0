"""Plans and modules in files that tpgen 0.1 wrote; `tests/test_saved.py` reads them.

`python -m tests.saved` writes them anew, for a format that is new: files of older ones stay.
"""
