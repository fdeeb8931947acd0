"""Compile GraphModules and choose strategies and backends."""
