"""HOW FAST it is: named problems, contenders and tasks, measured in turn after a check that the results are right.

`run.run_benchmarks` measures, `records.Report` keeps, `tables` and `plots` show.
"""
