"""The demo dataset: about 350 small files of one coloured shape each, made from a seed.

`formats` holds the file formats; `scenes` the words of captions, the scene of each file, its drawing and the test
prompts. `writers` writes good files, `make` the dataset with its bad files; `colour` scores generated clips, and
`walkthrough` is `reelworks demo`. All variation is a hashed draw of the seed, so the same seed gives the same scenes.
"""
