"""`reelworks new`: a recipe proposed from a folder, a model and the memory of a device."""
