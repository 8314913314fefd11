"""What speed and memory are measured with; each module is one command."""
