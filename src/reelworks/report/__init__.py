"""Pages of one HTML file each, readable without a network: a run, a plan, a catalog, what buckets see.

Owns what is drawn, on pages and contact sheets; holds no state and has no second truth: a run's report knows what
the run folder says, a plan's page what `plan --json` prints. `run_data` reads, `run_facts` and `status` derive,
`plots` draws and `html` puts it together; `page` fills the templates.
"""
