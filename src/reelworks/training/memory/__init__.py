"""Tell how much memory a pass takes: by a model of it, by what was measured, and by trying one."""
