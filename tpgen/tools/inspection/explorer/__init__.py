"""The explorer: every stage of a product on one page, in one file that opens from disk."""
