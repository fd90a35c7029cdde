"""Self-contained HTML pages of a run, a plan and a catalog, and contact sheets of buckets.

Pages hold no state of their own: a run's report shows what the run folder holds, a plan's page what `plan --json`
prints. `run_data` reads a run folder, `run_facts` and `status` derive facts, `plots` draws curves and `html` assembles
the report; `page` fills the templates.
"""
