"""The modules that users construct."""
