"""ERNIE-Image by Baidu: images."""
