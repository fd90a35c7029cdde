"""The command line: one file a verb; parse, call, print; no logic.

Heavy imports happen inside the verbs, so that `--help` answers at once.

`exit_codes` holds the codes that commands end with. `docs/reference/cli.md` is written from the help texts here
(`make reference`), so what they leave out stands in no reference.
"""
