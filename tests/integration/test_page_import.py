"""A config of another trainer is moved here on the page, in a real browser."""

import prepare_files
import pytest
from headless import findings, require_layout, went_to, window

from reelworks.training.recipe import recipe_file

CONFIG = 'bucket_config = {"256": {1: (1.0, 4)}}\nmodel = dict(type="STDiT3-XL/2", from_pretrained="w")\nmystery = 3\n'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("moving")
    prepare_files.picture(root / "mine/picture.png", size=(64, 64))
    return root


@pytest.mark.slow(reason="waits for a command in the page's queue")
def test_a_chosen_config_becomes_a_recipe_and_each_key_is_told(opened, address, root):
    with window(opened) as shown:
        went_to(shown, address, "#/new", ".new-import")
        shown.click(".new-import summary")
        files = {"name": "stage1.py", "mimeType": "text/x-python", "buffer": CONFIG.encode()}
        shown.set_input_files(".new-import input[type=file]", files)
        shown.click(".new-import button:has-text('Import')")
        shown.wait_for_selector(".new-import h2:has-text('stage1')")
        text = shown.locator(".new-import").inner_text()
        assert "Recognised as a config of opensora" in text
        assert "mystery" in text
        assert findings(shown) == []
        require_layout(shown)
    assert recipe_file.load(root / "stage1.toml").dataset[0].path == "mine"
