"""The laws that a module must obey, checked on its own device and in its own dtype."""
