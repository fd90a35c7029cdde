"""The command line, one file for each command: parse, call, print; no logic.

Heavy imports happen inside the commands, so that `--help` answers at once.

`exit_codes` holds the exit codes of all commands. `make reference` generates `docs/reference/cli.md` from the help
texts.
"""
