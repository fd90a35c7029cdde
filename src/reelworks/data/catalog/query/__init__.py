"""Questions to a catalog: filters, captions and templates."""
