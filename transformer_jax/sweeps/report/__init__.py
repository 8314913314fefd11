"""The report of a study: tables, figures, a Markdown file and one HTML page."""
