"""Tools for LoRA files: tell, convert, merge, resize, extract, apply and average them.

Each verb of `reelworks lora` is a function of a module of its name, which takes a request and returns a frozen result. Files
are read a layer at a time, in float32, and whatever is written tells how far it is from the exact answer. What a kind of
update can answer is known by its class in `models/adapters/adapter_types/`.

Knows neither recipes nor training; a run is a folder of checkpoints here.
"""
