"""`reelworks publish`: publish a run's weights on the Hugging Face hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reelworks.annexes.hub.request import PublishRequest
from reelworks.commands import show
from reelworks.commands.options import Json

if TYPE_CHECKING:
    from reelworks.annexes.hub.publish import Published


def publish(request: PublishRequest, json: Json = False) -> None:
    """Publish a run's weights on the Hugging Face hub, with a model card, previews and the recipe.

    Uploads the weights of a run's newest checkpoint, or of one checkpoint, in one commit; for a LoRA run, the LoRA. The
    model card tells the base and its licence, the trigger word, rank and steps, the data in numbers, and how to load it.

    No name of a file, folder, machine or account leaves this machine: recipe.toml has neutral words in their place, and
    headers and previews are without. Prompts, captions of the recipe and the trigger word are published.

    A new repository is private unless --public is given. In one that exists, files that this run did not publish are not
    replaced without --replace. The token is that of `hf auth login` or of HF_TOKEN; HF_ENDPOINT names another hub.
    """
    with show.loading():
        from reelworks.annexes.hub import publish as publishing

    published = publishing.publish(request)
    show.json(published) if json else _print(published)


def _print(published: Published) -> None:
    from reelworks.core import units

    for file in published.files:
        show.line(f"{file.path}  {units.size(file.bytes)}")
    for note in published.notes:
        show.line(f"note: {note}")
    seen = "private" if published.private else "public"
    if published.url is None:
        show.line(f"{published.folder}: would be uploaded to {published.repository}, {seen} if it is new")
    else:
        show.line(f"{published.url}: step {published.step}, {seen}, commit {published.commit}")
