"""Record → outline → terminal, HTML, Markdown, CSV, JSON. Reads; never measures, judges or acts."""
