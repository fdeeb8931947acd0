"""The words that every wing speaks: errors, text, pictures, caches, locks, a clock, and private names of torch and e3nn."""
