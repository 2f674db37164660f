"""A record as tables, Markdown, JSON and one self-contained page. Readers never act."""
