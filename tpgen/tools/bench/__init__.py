"""Benchmarks: measure contenders on named problems and tasks, after a check of their results.

`run.run_benchmarks` measures, `records.Report` keeps figures, `tables` shows reports.
"""
