"""The demo dataset: about 120 small files of one coloured shape each, made from a seed.

`palette` holds the words of captions and their colours, `formats` the file formats, `scenes` assigns a scene to each
file, `draw` renders a scene, `writers` and `damage` write good and bad files, `make` writes the dataset, and `prompts`
holds test prompts. All variation is a hashed draw of the seed, so the same seed always gives the same scenes.
"""
