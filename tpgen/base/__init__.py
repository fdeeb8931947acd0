"""Tools of every wing: errors, text, pictures, caches, locks, a clock, private names of torch and e3nn."""
