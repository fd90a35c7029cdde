"""The data of a run as its former starts had them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.prepare.data import RecipeData
from reelworks.recipe import load as recipes
from reelworks.run.folder import RunFolder

# Rows of millions of clips are large; epochs are asked for in their order.
_KEPT = 4


@dataclass
class FormerData:
    """Data by recipe and version of the catalog; the last few opened are kept."""

    run: RunFolder
    _opened: OrderedDict[tuple[str, int | None], RecipeData] = field(default_factory=OrderedDict)

    def now(self) -> RecipeData:
        """The data of the latest start's recipe, at the catalog's newest version.

        Raises:
            UserError: There is no recipe or no catalog.
        """
        return self._open(self.run.recipe_file, None)

    def of(self, recipe: str, version: int | None = None) -> RecipeData:
        """The data of a recipe that a former start went by.

        Args:
            recipe: Its file below `recipes/`.
            version: Of the catalog; the newest where it is not given.

        Raises:
            UserError: The recipe or its catalog cannot be read.
        """
        return self._open(self.run.recipes_folder / recipe, version)

    def find(self, recipe: str) -> RecipeData | None:
        """The data of a former start's recipe at the catalog's newest version; None where it cannot be read."""
        try:
            return self.of(recipe)
        except UserError:
            return None

    def _open(self, path: Path, version: int | None) -> RecipeData:
        # The folder may have moved, and a relative name in its recipe begins where training was started.
        recipe = recipes.load(path).model_copy(update={"output": str(self.run.path)})
        key = recipes.dump(recipe), version
        if key not in self._opened:
            self._opened[key] = RecipeData.open(recipe, version)
            while len(self._opened) > _KEPT:
                self._opened.popitem(last=False)
        self._opened.move_to_end(key)
        return self._opened[key]
