"""Note and measure the losses of single clips beside a training, and say by them what was learnt of each.

`rounds` is the observer of a training, which keeps an `account` of its clips in each checkpoint (`losses` is the file) and
measures some of them with fixed noise; `learning` gives each clip a word, for the command, the page and the report.
"""
