"""Write recipes/lora: a recipe for 20 pictures for each model and size of GPU that it fits.

python scripts/lora_recipes.py
"""

from __future__ import annotations

from pathlib import Path

from reelworks.quickstart import ready_recipes

FOLDER = Path(__file__).parents[1] / "recipes" / "lora"


def texts() -> dict[str, str]:
    """Return the recipes by the names of their files."""
    return {
        f"{model}-{one.vram_gb}gb.toml": one.result.text
        for model in ready_recipes.models()
        for one in ready_recipes.of_model(model)
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    made = texts()
    for file in FOLDER.glob("*.toml"):
        if file.name not in made:
            file.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{len(made)} recipes in {FOLDER}")
