"""The local page: what runs, data and plans are, drawn from the files that the command line writes.

It has no second truth: everything is read from catalogs, recipes and run folders, and everything that changes something
is done by the functions or commands of the command line. `app.build` makes the web application, and `serve.serve` runs it.
"""
