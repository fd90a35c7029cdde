"""Pages of one HTML file each, readable without a network: a run, a plan, a catalog, what buckets see.

Owns what is drawn, on pages and contact sheets. May import core, run, prepare and the torch-free store of
checkpoint; holds no state and has no second truth: a run's report knows what the run folder says, a plan's
page what `plan --json` prints. For the report `data` reads, `facts` and `story` derive, `figures` draws and
`html` puts it together; `page` fills the templates.
"""
