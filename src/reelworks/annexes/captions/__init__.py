"""Write captions of clips by a vision-language model, a server or a command.

`caption.caption` takes a request and returns a frozen result. `clips` finds what to caption and where each caption belongs,
`frames` reads the frames that are shown, `asking` gives them to a captioner (`vision_language`, `server`, `command`), `answers`
makes a caption of what it answers or refuses it, and `record` keeps what was written, by what, and the text that was there
before.

Knows neither recipes nor training. Media files are only read.
"""
