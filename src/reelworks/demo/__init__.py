"""The demo data set: about 120 small files of one coloured shape each, made from a seed.

`palette` holds the words of a caption and their colours, `formats` what files there are, `scenes` which
scene goes into which file, `draw` turns a scene into frames, `writers` and `damage` put good and bad
files on disk, `make` does it all, `prompts` holds what a model trained on it is asked for. Everything
that varies is a hashed draw of the seed, so one seed always means the same scenes.
"""
