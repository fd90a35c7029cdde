"""`reelworks new`: propose a recipe for a folder, a model and the memory of a GPU."""
