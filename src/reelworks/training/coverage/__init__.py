"""Account for what a run has trained: coverage of its clips, speed, what it learned of them, and when to stop."""
