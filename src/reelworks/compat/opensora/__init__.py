"""The importer of Open-Sora's configs: its keys, defaults and rules, and the recipe that they become."""
