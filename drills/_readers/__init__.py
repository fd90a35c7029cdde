"""Programs that read LoRA files, each run in an environment of its own: none of these modules imports Reelworks.

`python MODULE FOLDER OUT` reads every case below a folder with the program's own code, and writes for each into OUT/CASE
`merged.safetensors`, the weights as the program has them then, and `told.json`: names of the file that it did not take, or an error.
"""
