"""One folder per question: README.md with question, command and answer, study.py with the variants."""
