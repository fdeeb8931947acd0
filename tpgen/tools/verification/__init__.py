"""Laws that a module must obey, on its own device and in its own dtype."""
