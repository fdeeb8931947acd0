"""Modules that users construct."""
