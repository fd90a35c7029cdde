"""The command line: one file a verb; parse, call, print; no logic.

Heavy imports happen inside the verbs, so that `--help` answers at once.

Exit codes: 0 done; 1 failed; 2 bad input, with a remedy printed; 75 saved on a signal, requeue the same
command; 130 interrupted.
"""
