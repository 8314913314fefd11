"""What a study has found, as tables, figures and one page."""
