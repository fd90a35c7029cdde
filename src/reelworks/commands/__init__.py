"""The command line, one file for each command or subject: parse, call, print; no logic.

Heavy imports happen inside the commands, so that `--help` answers at once. `make reference` generates
`docs/reference/cli.md` from the help texts.
"""
