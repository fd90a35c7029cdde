"""One HTML file that tells a run: drawn from the run folder, readable without a network.

Owns the report alone. May import core, run and the torch-free store of checkpoint; reads files, holds
no state and knows nothing that the run folder does not say. `data` reads, `facts` and `story` derive,
`figures` draws, `html` puts it together with `template.html`, `style.css` and `script.js`.
"""
