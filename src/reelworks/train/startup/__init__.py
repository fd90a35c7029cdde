"""Do everything before the first step: open the run, build the model, choose its layout, load what training begins with."""
